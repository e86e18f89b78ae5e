// Working memory that is allocated once and reused for every bucket. New
// allocations would cause page faults at every step.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace commprof::compress {

inline constexpr size_t kAlignment = 64;

constexpr size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class Scratch {
 public:
  // Returns at least `bytes` bytes, aligned to 64; previous contents are lost.
  std::byte* reserve(size_t bytes) {
    if (bytes > capacity_) {
      memory_.reset(); // first, to lower the peak memory use
      memory_.reset(
          static_cast<std::byte*>(
              ::operator new(bytes, std::align_val_t(kAlignment))));
      capacity_ = bytes;
    }
    return memory_.get();
  }
  float* reserveFloats(size_t count) {
    return reinterpret_cast<float*>(reserve(count * sizeof(float)));
  }
  std::byte* data() const {
    return memory_.get();
  }
  float* floats() const {
    return reinterpret_cast<float*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete(memory, std::align_val_t(kAlignment));
    }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t capacity_ = 0;
};

} // namespace commprof::compress
