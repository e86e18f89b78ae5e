#include "compress/handshake.h"

namespace commprof::compress {

std::span<const Header> Handshake::run(const Header& mine, Channel& channel) {
  const auto world = size_t(channel.size());
  mine_ = pack(mine);
  theirs_.resize(world);
  channel.sendToAll(mine_, std::vector<Bytes>(theirs_.begin(), theirs_.end()))
      .wait();
  headers_.assign(world, mine);
  for (size_t r = 0; r < world; ++r) {
    if (int(r) != channel.rank()) {
      headers_[r] = unpack(theirs_[r], int(r), channel.bucketIndex());
      checkAgreement(mine, channel.rank(), headers_[r], int(r));
    }
  }
  return headers_;
}

} // namespace commprof::compress
