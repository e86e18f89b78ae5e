// Everyone receives everyone's payload and adds all of them in the order of
// ranks, its own too and from its encoded form: the same bits everywhere.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "compress/exchange/messages/channel.h"
#include "compress/scratch.h"

namespace commprof::compress {

class Gather {
 public:
  // Where to encode this rank's payload of so many bytes; the same on all
  // ranks.
  std::byte* prepare(size_t bytes, const Channel& channel);
  std::span<const std::byte> mine() const {
    return {mine_.data(), bytes_};
  }
  // All payloads, by rank, valid until prepare(). Messages of other ranks hold
  // anything: check them.
  std::vector<std::span<const std::byte>> run(Channel& channel);

 private:
  Scratch mine_, theirs_;
  size_t bytes_ = 0;
};

[[noreturn]] void refusePayload(
    int rank,
    const Channel& channel,
    const char* reason);

} // namespace commprof::compress
