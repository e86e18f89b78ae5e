#include "compress/exchange/gather.h"

#include <string>

#include "compress/compressor.h"

namespace commprof::compress {

std::byte* Gather::prepare(size_t bytes, const Channel& channel) {
  bytes_ = bytes;
  return mine_.reserve(bytes + channel.trailerBytes());
}

std::vector<std::span<const std::byte>> Gather::run(Channel& channel) {
  const size_t length = bytes_ + channel.trailerBytes();
  const size_t stride = aligned(length);
  std::byte* const theirs = theirs_.reserve(stride * size_t(channel.size()));
  std::vector<Bytes> receive;
  std::vector<std::span<const std::byte>> payloads;
  for (int r = 0; r < channel.size(); ++r) {
    receive.push_back({theirs + stride * size_t(r), length});
    payloads.push_back(
        r == channel.rank() ? mine() : receive.back().first(bytes_));
  }
  channel.report().payload_bytes += bytes_;
  channel.sendToAll({mine_.data(), length}, receive).wait();
  return payloads;
}

void refusePayload(int rank, const Channel& channel, const char* reason) {
  throw PayloadError(
      "rank " + std::to_string(channel.nameOf(rank)) + ", bucket " +
      std::to_string(channel.bucketIndex()) + ": " + reason);
}

} // namespace commprof::compress
