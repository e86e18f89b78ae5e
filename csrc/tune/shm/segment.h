// Memory shared by the ranks of one host: mode 0600, with a random name that is
// removed as soon as all ranks have mapped it, so that a later crash leaves
// nothing behind.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

namespace commprof::shm {

// Thrown if the host lacks space for the memory or does not allow it. what()
// contains name, size and advice. The caller continues without shared memory.
class SegmentError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Segment {
 public:
  // Range of bytes of the segment.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  // Create or open a zero-filled segment. `name`: "/commprof-...", for
  // shm_open. `own`: ranges that this rank writes. They are allocated now, on
  // this rank's NUMA node, so that a full /dev/shm is detected here.
  static Segment create(
      const std::string& name,
      size_t bytes,
      std::span<const Range> own);
  static Segment open(
      const std::string& name,
      size_t bytes,
      std::span<const Range> own);
  // Returns the same mapping again, for ranks that are threads of one process;
  // it must not outlive `other`.
  static Segment alias(const Segment& other);
  // Returns a new name with 128 random bits.
  static std::string randomName();

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  // Unmaps; the creator also removes the name. Does nothing in a forked child,
  // which did not inherit the mapping.
  ~Segment();

  std::byte* data() const noexcept {
    return data_;
  }
  size_t bytes() const noexcept {
    return bytes_;
  }
  // Maps the pages of all ranks in advance, so that no collective has to (from
  // Linux 5.14 on). Must be called after all ranks have reserved their pages:
  // pages that are not reserved yet would be allocated on this rank's node.
  void populate() noexcept;
  // Prevents further opens of the segment. The creator calls it once.
  void unlinkName() noexcept;

 private:
  Segment(std::string name, std::byte* data, size_t bytes, bool owner)
      : name_(std::move(name)),
        data_(data),
        bytes_(bytes),
        owner_(owner),
        pid_(getpid()) {}
  std::string name_; // empty once unlinked
  std::byte* data_;
  size_t bytes_;
  bool owner_; // true if this object created the name and must remove it
  bool mapped_ = true; // this object must unmap it
  pid_t pid_; // id of the process that mapped the segment
};

} // namespace commprof::shm
