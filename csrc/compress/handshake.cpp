#include "compress/handshake.h"

#include <algorithm>

namespace commprof::compress {

std::span<const Header> Handshake::run(const Header& mine, Channel& channel) {
  const auto world = size_t(channel.size());
  const size_t length = kHeaderBytes + channel.trailerBytes();
  mine_.assign(length, std::byte{0});
  const HeaderBytes packed = pack(mine);
  std::copy(packed.begin(), packed.end(), mine_.begin());
  theirs_.assign(world * length, std::byte{0});
  std::vector<Bytes> receive(world);
  for (size_t r = 0; r < world; ++r) {
    receive[r] = Bytes(theirs_).subspan(r * length, length);
  }
  channel.sendToAll(mine_, receive).wait();
  headers_.assign(world, mine);
  for (size_t r = 0; r < world; ++r) {
    if (int(r) != channel.rank()) {
      headers_[r] = unpack(
          receive[r].first(kHeaderBytes), int(r), channel.bucketIndex());
      checkAgreement(mine, channel.rank(), headers_[r], int(r));
    }
  }
  return headers_;
}

} // namespace commprof::compress
