#include "compress/exchange/one_phase.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace commprof::compress {

namespace {

// Of a bucket on its way: the piece that is encoded, those that travel, and the
// one that is summed, each in its place of a ring. So few bytes stay in the
// caches from one end to the other.
class OnePhaseRun {
 public:
  OnePhaseRun(
      const BlockCodec& codec,
      const Pieces& pieces,
      BlockScratch& scratch,
      Job& job)
      : codec_(codec),
        pieces_(pieces),
        job_(job),
        channel_(job.channel),
        stride_(longestMessage()),
        encoded_(scratch.encoded.reserve(stride_ * kPlaces)),
        received_(scratch.received.reserve(
            stride_ * kPlaces * size_t(channel_.size()))),
        travelling_(kPlaces) {}

  void run() {
    if (job_.sent != nullptr) {
      job_.sent->trailer = channel_.trailerBytes();
      job_.sent->payload.resize(pieces_.end());
    }
    const int count = pieces_.count();
    for (int i = 0; i < count + kAhead; ++i) {
      if (i < count) {
        send(i);
      }
      if (i >= kAhead) {
        sum(i - kAhead);
      }
    }
  }

 private:
  void send(int piece) {
    const Bytes message{own(piece), pieces_.messageBytes(0, piece)};
    {
      StageTimer timer(channel_.report(), Stage::kEncode);
      encodePiece(codec_, job_, pieces_.range(0, piece), message.data());
    }
    std::vector<Bytes> receive;
    for (int r = 0; r < channel_.size(); ++r) {
      receive.push_back({messageFrom(r, piece), message.size()});
    }
    travelling_[place(piece)] = channel_.sendToAll(message, receive);
  }

  void sum(int piece) {
    travelling_[place(piece)].wait();
    StageTimer timer(channel_.report(), Stage::kReduce);
    keep(piece);
    const auto [begin, count] = pieces_.range(0, piece);
    std::vector<const std::byte*> parts;
    std::vector<int> exponents;
    bool finite = true;
    for (int r = 0; r < channel_.size(); ++r) {
      parts.push_back(
          r == channel_.rank() ? own(piece) : messageFrom(r, piece));
      const PieceNote note =
          checkPiece(codec_, channel_, r, parts.back(), count);
      exponents.push_back(note.exponent);
      finite = finite && note.finite;
    }
    if (finite && count != 0) {
      codec_.mean(parts, exponents, count, job_.bucket.gradient + begin);
    }
    job_.finite = job_.finite && finite;
  }

  // The copy costs least while the piece is in the caches.
  void keep(int piece) {
    if (job_.sent != nullptr) {
      std::byte* const to = job_.sent->payload.data();
      std::memcpy(
          to + pieces_.offset(0, piece),
          own(piece),
          pieces_.messageBytes(0, piece));
    }
  }

  size_t longestMessage() const {
    size_t longest = 0;
    for (int piece = 0; piece < pieces_.count(); ++piece) {
      longest = std::max(longest, pieces_.messageBytes(0, piece));
    }
    return aligned(longest);
  }
  static size_t place(int piece) {
    return size_t(piece) % kPlaces;
  }
  std::byte* own(int piece) const {
    return encoded_ + stride_ * place(piece);
  }
  std::byte* messageFrom(int rank, int piece) const {
    return received_ +
        stride_ * (place(piece) * size_t(channel_.size()) + size_t(rank));
  }

  // So the link has the next piece before it is done with one, where waking up
  // for each would take as long as a piece does.
  static constexpr int kAhead = 3;
  static constexpr size_t kPlaces = kAhead + 1;

  const BlockCodec& codec_;
  const Pieces& pieces_;
  Job& job_;
  Channel& channel_;
  size_t stride_;
  std::byte* encoded_;
  std::byte* received_;
  std::vector<Channel::Pending> travelling_;
};

} // namespace

void runOnePhase(
    const BlockCodec& codec,
    const Pieces& pieces,
    BlockScratch& scratch,
    Job& job) {
  OnePhaseRun(codec, pieces, scratch, job).run();
}

} // namespace commprof::compress
