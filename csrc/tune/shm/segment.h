// Memory that the ranks of one host share, with mode 0600. Its random name is
// removed as soon as all ranks have mapped the memory. So a later crash leaves
// nothing in /dev/shm.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

namespace commprof::shm {

// Thrown if the host has too little shared memory or does not allow it. The
// caller continues without shared memory.
class SegmentError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Segment {
 public:
  // A range in bytes.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  // create() and open() return a zero-filled segment. `name` is a name for
  // shm_open, such as "/commprof-...". `own` has the ranges that this rank
  // writes. Their memory is allocated here, on this rank's NUMA node, so that a
  // full /dev/shm is an error here.
  static Segment create(
      const std::string& name,
      size_t bytes,
      std::span<const Range> own);
  static Segment open(
      const std::string& name,
      size_t bytes,
      std::span<const Range> own);
  // Returns a second object for the mapping of `other`, for ranks that are
  // threads of one process. The second object must not outlive `other`.
  static Segment alias(const Segment& other);
  // Returns a name of 128 random bits, which nobody can guess.
  static std::string randomName();

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&&) = delete;
  // Unmaps the memory. Removes the name if this object created the name. Does
  // nothing in a forked child, which did not inherit the mapping.
  ~Segment();

  std::byte* data() const noexcept {
    return data_;
  }
  size_t bytes() const noexcept {
    return bytes_;
  }
  // Maps the pages of all ranks, so that collectives cause no page faults. Has
  // no effect before Linux 5.14. Must be called after all ranks have reserved
  // their pages: other pages would be allocated on this rank's NUMA node.
  void populate() noexcept;
  // Removes the name if this object created the name. The segment cannot be
  // opened after that.
  void unlinkName() noexcept;

 private:
  Segment(std::string name, std::byte* data, size_t bytes, bool owner)
      : name_(std::move(name)),
        data_(data),
        bytes_(bytes),
        owner_(owner),
        pid_(getpid()) {}
  std::string name_;
  std::byte* data_;
  size_t bytes_;
  bool owner_; // true if this object created the name and must remove it
  bool mapped_ = true; // true if this object must unmap the memory
  pid_t pid_; // id of the process that mapped the segment
};

} // namespace commprof::shm
