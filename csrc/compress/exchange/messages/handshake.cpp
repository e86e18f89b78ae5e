#include "compress/exchange/messages/handshake.h"

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
      const int name = channel.nameOf(int(r));
      headers_[r] = unpack(theirs_[r], name, channel.bucketIndex());
      checkAgreement(mine, channel.nameOf(channel.rank()), headers_[r], name);
    }
  }
  return headers_;
}

} // namespace commprof::compress
