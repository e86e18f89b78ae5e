// Sends and receives the data of one bucket. Times each transfer, counts the
// sent bytes, and adds a checksum to each message if requested.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tune/compress/bucket.h"
#include "tune/compress/exchange/transport.h"

namespace commprof::compress {

using Bytes = std::span<std::byte>;

class Channel {
 public:
  Channel(
      Transport& transport,
      BucketReport& report,
      uint32_t bucket_index,
      bool checksum);

  int rank() const {
    return transport_.rank();
  }
  int size() const {
    return transport_.size();
  }
  // Returns the number by which error messages name `rank`.
  int nameOf(int rank) const {
    return transport_.nameOf(rank);
  }
  BucketReport& report() {
    return report_;
  }
  uint32_t bucketIndex() const {
    return bucket_index_;
  }
  // Size in bytes of the checksum at the end of each message of exchange().
  size_t trailerBytes() const {
    return checksum_ ? 4 : 0;
  }

  class Pending {
   public:
    Pending() = default;
    // Throws TransportError, or PayloadError if a checksum is wrong.
    void wait();

   private:
    friend class Channel;
    Channel* channel_ = nullptr;
    std::unique_ptr<Transfer> transfer_;
    size_t span_ = 0;
    std::vector<Bytes> received_;
  };

  // As Transport::exchange(); lengths include trailers. Does nothing if there
  // is no other rank.
  Pending exchange(std::span<const Bytes> send, std::span<const Bytes> recv);
  // Sends the same message to every other rank.
  Pending sendToAll(Bytes message, std::span<const Bytes> recv);
  Pending allReduceSum(std::span<float> data);

 private:
  Pending begin();
  void seal(Bytes message) const;
  void verify(std::span<const Bytes> received) const;

  Transport& transport_;
  BucketReport& report_;
  uint32_t bucket_index_;
  bool checksum_;
};

// Number of bytes that one rank sends in a ring all-reduce of `bytes` bytes
// (Patarasuk and Yuan, 2009), rounded down.
uint64_t ringBytes(size_t bytes, int world);

// Records a span of the stage from construction to destruction.
class StageTimer {
 public:
  StageTimer(BucketReport& report, Stage stage);
  ~StageTimer();
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  BucketReport& report_;
  size_t span_;
};

} // namespace commprof::compress
