// Names, ranges and messages of options.
#include "check.h"
#include "compress/schemes/top_k.h"
#include "compress_world.h"

using namespace commprof::compress;

namespace {

std::string refusal(const Options& options) {
  try {
    Compressor::make(options);
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "";
}

} // namespace

int main() {
  CHECK_EQ(schemeNames().size(), 8u);
  for (const std::string& name : schemeNames()) {
    CHECK_EQ(refusal(optionsOf(name)), "");
    for (const OptionSpec& spec : optionSpecs(name)) {
      CHECK_EQ(refusal(optionsOf(name, {{spec.name, spec.minimum}})), "");
      CHECK_EQ(refusal(optionsOf(name, {{spec.name, spec.maximum}})), "");
      CHECK(!refusal(optionsOf(name, {{spec.name, spec.maximum + 1}})).empty());
      CHECK(!refusal(optionsOf(name, {{spec.name, spec.minimum - 1}})).empty());
      CHECK(!refusal(optionsOf(name, {{spec.name, NAN}})).empty());
      CHECK_EQ(
          refusal(optionsOf(name, {{spec.name, spec.maximum / 2 + 0.25}}))
              .empty(),
          !spec.whole && spec.maximum >= 0.75);
    }
  }
  CHECK_EQ(
      refusal(optionsOf("zip")),
      "compression scheme 'zip' is unknown; there are: none fp16 bf16 int8 "
      "int4 topk powersgd hierarchical");
  CHECK_EQ(
      refusal(optionsOf("topk", {{"k", 3}})),
      "option 'k' of compression scheme 'topk' is unknown; it takes: ratio "
      "feedback start_step checksum hierarchical");
  CHECK_EQ(
      refusal(optionsOf("powersgd", {{"rank", 17}})),
      "option 'rank' of compression scheme 'powersgd' is 17; allowed: whole "
      "numbers from 1 to 16");
  CHECK_EQ(shareOf(5000, 10'000'000), 50u); // of a billion
  CHECK_EQ(shareOf(5000, 1), 1u); // something is sent of every bucket
  CHECK_EQ(shareOf(5000, 1'000'000'000), 5000u);
  CHECK_EQ(shareOf(0, 10'000'000), 0u);
  return check::report();
}
