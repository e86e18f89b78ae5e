#include "base/crc32.h"
#include "check.h"
#include "compress_world.h"
#include "core/trace_format.h"
#include "tune/compress/exchange/messages/wire.h"

using namespace commprof::compress;

namespace {

constexpr size_t kValues = 9000;

bool contains(const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) {
    std::fprintf(stderr, "'%s' lacks '%s'\n", text.c_str(), part.c_str());
    return false;
  }
  return true;
}

std::vector<Options> compressingOptions() {
  return {
      optionsOf("fp16"),
      optionsOf("bf16"),
      optionsOf("int8"),
      optionsOf("int4"),
      optionsOf("topk"),
      optionsOf("powersgd"),
  };
}

bool sameState(
    const std::vector<ParameterState>& a,
    const std::vector<ParameterState>& b) {
  bool same = a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i) {
    same = a[i].parameter == b[i].parameter && a[i].kind == b[i].kind &&
        sameBits(a[i].values, b[i].values);
  }
  return same;
}

void checkNonfinite(const Options& options, float value, size_t n) {
  const std::vector<Slot> slots = someSlots(n);
  World world(3, options);
  Gradients gradients = someGradients(3, n, 1);
  world.run(gradients, slots, 0);
  const auto before = world[0].state();
  gradients = someGradients(3, n, 2);
  gradients[1][n / 2] = value;
  world.run(gradients, slots, 1);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(world.reports[size_t(rank)].nonfinite);
    for (const float x : gradients[size_t(rank)]) {
      CHECK(std::isnan(x));
    }
  }
  CHECK(sameState(world[0].state(), before));
  gradients = someGradients(3, n, 3);
  world.run(gradients, slots, 2);
  for (const float x : gradients[0]) {
    CHECK(std::isfinite(x));
  }
}

void checkNonfiniteUncompressed() {
  World world(2, optionsOf("none"));
  Gradients gradients(2, std::vector<float>{1, 2, 3});
  gradients[1][2] = INFINITY;
  world.run(gradients, {{0, 0, 3, 3, 0}}, 0);
  CHECK(sameBits(gradients[0], {1, 2, INFINITY}));
}

template <class Error>
void checkAllThrow(
    const std::vector<std::exception_ptr>& errors,
    const std::vector<std::string>& parts) {
  for (const auto& error : errors) {
    CHECK_THROWS(Error, if (error) std::rethrow_exception(error));
    for (const std::string& part : parts) {
      CHECK(contains(messageOf(error), part));
    }
  }
}

void checkDisagreement(
    const std::string& field,
    const std::function<void(Bucket&, Options&)>& change,
    const Options& options) {
  ThreadGroup group(2);
  const std::vector<Slot> slots = someSlots(kValues);
  const auto errors = runRanks(group, [&](ThreadTransport& transport) {
    std::vector<float> gradient(kValues, 1.0f);
    Bucket bucket;
    bucket.gradient = gradient.data();
    bucket.numel = kValues;
    bucket.slots = slots;
    bucket.signature = 5;
    bucket.step = 11;
    bucket.index = 4;
    Options mine = options;
    if (transport.rank() == 1) {
      change(bucket, mine);
    }
    BucketReport report;
    Compressor::make(mine)->run(bucket, transport, report);
  });
  checkAllThrow<DisagreementError>(
      errors, {field, "bucket 4", "on rank 0", "on rank 1"});
}

void checkDisagreements() {
  for (const char* scheme : {"none", "int8", "topk", "powersgd"}) {
    const Options options = optionsOf(scheme);
    const auto check = [&](const std::string& field, auto change) {
      checkDisagreement(field, change, options);
    };
    check("step is 1", [](Bucket& b, Options&) { b.step = 12; });
    check("n (values)", [](Bucket& b, Options&) {
      b.numel = 8000;
      b.slots = {};
    });
    check("signature", [](Bucket& b, Options&) { b.signature = 6; });
    check("scheme is", [](Bucket&, Options& o) { o = optionsOf("fp16"); });
  }
  const auto set = [](const char* name, double value) {
    return [=](Bucket&, Options& o) { o.values[name] = value; };
  };
  checkDisagreement("k (", set("ratio", 0.02), optionsOf("topk"));
  checkDisagreement("k (", set("rank", 2), optionsOf("powersgd"));
  checkDisagreement("options", set("feedback", 1), optionsOf("int8"));
  checkDisagreement("options", set("checksum", 1), optionsOf("int8"));
  checkDisagreement(
      "options",
      [](Bucket&, Options& o) { o.seed = 99; },
      optionsOf("powersgd"));
}

void checkDamagedHeaders() {
  for (size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    World world(2, optionsOf("topk"));
    world.group().tamper =
        [&](int from, int, uint64_t sequence, ThreadGroup::Message& message) {
          if (from == 1 && sequence == 0) {
            message[bit / 8] ^= std::byte(1 << (bit % 8));
          }
        };
    Gradients gradients = someGradients(2, kValues, 1);
    const auto errors = world.tryRun(gradients, someSlots(kValues), 0);
    CHECK(contains(messageOf(errors[0]), "rank 1"));
  }
}

void checkHeaderVersion() {
  HeaderBytes bytes = pack(Header{});
  CHECK_EQ(unpack(bytes, 0, 0).n, 0u);
  CHECK_THROWS(PayloadError, unpack(std::span(bytes).first(31), 0, 0));
  HeaderBytes other = bytes;
  other[0] ^= std::byte{1};
  CHECK_THROWS(PayloadError, unpack(other, 0, 0));
  // Byte 1 is the format's version, and bytes 2 and 3 are the header's check.
  bytes[1] = std::byte{200};
  bytes[2] = bytes[3] = std::byte{0};
  const auto check = uint16_t(commprof::crc32(bytes.data(), bytes.size()));
  std::memcpy(&bytes[2], &check, sizeof(check));
  CHECK_THROWS(DisagreementError, unpack(bytes, 0, 0));
}

// Sanitizers detect accesses out of bounds. Even without a checksum, topk
// detects random bytes, because random bytes contain invalid places.
void checkDamagedPayloads(const Options& options, bool detected) {
  std::mt19937 random(3);
  for (int round = 0; round < (check::kThreadSanitized ? 6 : 40); ++round) {
    World world(3, options);
    world.group().tamper =
        [&](int from, int, uint64_t sequence, ThreadGroup::Message& message) {
          if (from != 1 || sequence == 0) {
            return;
          }
          for (int i = 0; round % 2 == 0 && i < 3; ++i) {
            const size_t at = random() % (8 * message.size());
            message[at / 8] ^= std::byte(1 << (at % 8));
          }
          for (size_t i = 0; round % 2 == 1 && i < message.size(); ++i) {
            message[i] = std::byte(random());
          }
        };
    Gradients gradients = someGradients(3, kValues, 1);
    const auto errors = world.tryRun(gradients, someSlots(kValues), 0);
    const bool invalid_places = options.scheme == "topk" && round % 2 == 1;
    if (detected || invalid_places) {
      CHECK_THROWS(
          PayloadError, if (errors[0]) std::rethrow_exception(errors[0]));
      CHECK(contains(messageOf(errors[0]), "rank 1, bucket 0: "));
    }
  }
}

void checkTransportFailures(const Options& options) {
  const size_t n = 20000;
  Options options_in_pieces = options;
  options_in_pieces.piece_bytes = 4096;
  for (uint64_t at = 0; at < 8; ++at) {
    World world(2, options_in_pieces);
    std::atomic<bool> failed{false};
    world.group().fails = [&](int rank, uint64_t sequence) {
      const bool fail_now = rank == 1 && sequence == at;
      if (fail_now) {
        failed = true;
      }
      return fail_now;
    };
    Gradients gradients = someGradients(2, n, 1);
    const auto errors = world.tryRun(gradients, someSlots(n), 0);
    CHECK_EQ(errors[1] != nullptr, failed.load());
    if (failed) {
      CHECK_THROWS(TransportError, std::rethrow_exception(errors[1]));
    }
  }
}

void checkBadBuckets() {
  const auto messageFor = [](const std::vector<Slot>& slots) {
    World world(1, optionsOf("fp16"));
    Gradients gradients(1, std::vector<float>(100));
    return messageOf(world.tryRun(gradients, slots, 0)[0]);
  };
  CHECK_EQ(messageFor({{0, 0, 100, 10, 10}}), "");
  CHECK(contains(messageFor({{7, 1, 100, 100, 0}}), "parameter 7"));
  CHECK(contains(
      messageFor({{0, 0, 60, 60, 0}, {1, 50, 50, 50, 0}}),
      "begins at value 50"));
  CHECK(contains(messageFor({{0, 0, 100, 10, 11}}), "10 x 11"));
}

} // namespace

int main() {
  for (const Options& options : compressingOptions()) {
    checkNonfinite(options, NAN, kValues);
    if (!check::kThreadSanitized) {
      for (const float value : {INFINITY, -INFINITY, 3e38f}) {
        checkNonfinite(options, value, kValues);
      }
    }
    checkTransportFailures(options);
  }
  for (const char* scheme : {"fp16", "bf16", "int8", "int4", "topk"}) {
    for (const double feedback : {0.0, 1.0}) {
      Options options_in_pieces = optionsOf(scheme, {{"feedback", feedback}});
      options_in_pieces.piece_bytes = 512;
      checkNonfinite(options_in_pieces, INFINITY, kValues);
    }
  }
  checkNonfinite(optionsOf("topk", {{"ratio", 0.9}}), NAN, kValues);
  for (const char* scheme : {"topk", "powersgd"}) {
    checkNonfinite(optionsOf(scheme), NAN, 100);
  }
  checkNonfiniteUncompressed();
  checkTransportFailures(optionsOf("none"));
  checkDisagreements();
  checkDamagedHeaders();
  checkHeaderVersion();
  for (const char* scheme : {"fp16", "bf16", "int8", "int4", "topk"}) {
    checkDamagedPayloads(optionsOf(scheme), false);
    checkDamagedPayloads(optionsOf(scheme, {{"checksum", 1}}), true);
  }
  checkBadBuckets();
  return check::report();
}
