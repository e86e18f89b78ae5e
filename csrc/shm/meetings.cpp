#include "shm/meetings.h"

namespace commprof::shm {

Team::Intent intend(const std::string& what, uint64_t bytes) {
  Team::Intent intent;
  std::strncpy(intent.what, what.c_str(), sizeof intent.what - 1);
  intent.bytes = bytes;
  return intent;
}

std::string named(
    const char* what,
    kernels::Element element,
    kernels::Reduction reduction) {
  constexpr const char* kElements[] = {
      "fp32", "fp64", "fp16", "bf16", "int32", "int64"};
  constexpr const char* kReductions[] = {"sum", "mean", "max", "min"};
  return std::string(what) + " " + kElements[size_t(element)] + " " +
      kReductions[size_t(reduction)];
}

} // namespace commprof::shm
