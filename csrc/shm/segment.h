// Memory that the ranks of one host share: mode 0600, under a name that only
// this job can guess, without a name from the moment that all of them have
// mapped it. What crashes after that leaves nothing behind.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

namespace commprof::shm {

// The host has no room for it, or does not allow it. what() gives name, size
// and what to do. The caller goes on without shared memory.
class SegmentError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Segment {
 public:
  // Bytes of it.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  // `name` as shm_open wants it: "/commprof-...". Zero-filled. `own`: what this
  // rank writes. It is backed by memory at once, on this rank's NUMA node: a
  // full /dev/shm is met here and not later.
  static Segment create(
      const std::string& name,
      size_t bytes,
      std::span<const Range> own);
  static Segment open(
      const std::string& name,
      size_t bytes,
      std::span<const Range> own);
  // The same mapping once more, for ranks that are threads of one process; it
  // must not outlive `other`.
  static Segment alias(const Segment& other);
  // A fresh name with 128 random bits.
  static std::string randomName();

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  ~Segment(); // unmaps; takes the name away too if this created it

  std::byte* data() const noexcept {
    return data_;
  }
  size_t bytes() const noexcept {
    return bytes_;
  }
  // Maps the pages that all ranks have reserved, so that no collective has to
  // (from Linux 5.14 on). Before, it would take the others' memory from this
  // rank's node.
  void populate() noexcept;
  // Nobody else can open it from now on. The creator calls it, once.
  void unlinkName() noexcept;

 private:
  Segment(std::string name, std::byte* data, size_t bytes, bool owner)
      : name_(std::move(name)), data_(data), bytes_(bytes), owner_(owner) {}
  std::string name_; // empty once unlinked
  std::byte* data_;
  size_t bytes_;
  bool owner_; // of the name
  bool mapped_ = true; // by this
};

} // namespace commprof::shm
