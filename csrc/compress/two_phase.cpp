#include "compress/two_phase.h"

#include <algorithm>
#include <array>
#include <string>

namespace commprof::compress {

// One bucket on its way. While piece i travels to its owners, piece i + 1 is
// encoded; while the sums of piece i travel back, piece i + 1 is summed.
class TwoPhaseRun {
 public:
  TwoPhaseRun(TwoPhase& scheme, Job& job)
      : codec_(*scheme.codec_),
        job_(job),
        channel_(job.channel),
        pieces_(
            codec_,
            job.bucket.numel,
            channel_.size(),
            {scheme.piece_bytes_, channel_.trailerBytes()}),
        stride_(ownStride()),
        encoded_(scheme.encoded_.reserve(pieces_.end())),
        received_(scheme.received_.reserve(
            stride_ * size_t(pieces_.count()) * size_t(channel_.size()))),
        results_(scheme.results_.reserve(pieces_.end())),
        scattered_(size_t(pieces_.count())),
        gathered_(size_t(pieces_.count())) {
    for (const Header& header : job.headers) {
      exponents_.push_back(header.exponent);
    }
    result_exponent_ = *std::min_element(exponents_.begin(), exponents_.end());
  }

  void run() {
    const int count = pieces_.count();
    for (int i = 0; i < count + 2; ++i) {
      if (i < count) {
        scatter(i);
      }
      if (i >= 1 && i - 1 < count) {
        reduce(i - 1);
      }
      if (i >= 2) {
        finish(i - 2);
      }
    }
    channel_.report().payload_bytes += pieces_.payloadBytes();
    if (job_.sent != nullptr) {
      keep(*job_.sent);
    }
  }

 private:
  void scatter(int piece) {
    const int world = channel_.size();
    {
      StageTimer timer(channel_.report(), Stage::kEncode);
      for (int chunk = 0; chunk < world; ++chunk) {
        const auto [begin, count] = pieces_.range(chunk, piece);
        codec_.encode(
            job_.bucket.gradient + begin,
            job_.residual ? job_.residual + begin : nullptr,
            count,
            job_.mine().exponent,
            encoded_ + pieces_.offset(chunk, piece));
      }
    }
    std::vector<Bytes> send, receive;
    for (int r = 0; r < world; ++r) {
      send.push_back(message(encoded_, r, piece));
      receive.push_back(
          {messageFrom(r, piece), pieces_.messageBytes(me(), piece)});
    }
    scattered_[size_t(piece)] = channel_.exchange(send, receive);
  }

  void reduce(int piece) {
    scattered_[size_t(piece)].wait();
    const auto [begin, count] = pieces_.range(me(), piece);
    const Bytes result = message(results_, me(), piece);
    {
      StageTimer timer(channel_.report(), Stage::kReduce);
      std::vector<const std::byte*> parts;
      for (int r = 0; r < channel_.size(); ++r) {
        const bool own = r == me();
        parts.push_back(
            own ? encoded_ + pieces_.offset(r, piece) : messageFrom(r, piece));
        check(parts.back(), count, r);
      }
      codec_.reduce(parts, exponents_, count, result.data());
      if (job_.residual != nullptr) {
        feedBack(parts, begin, count, result.data());
      }
    }
    std::vector<Bytes> receive;
    for (int r = 0; r < channel_.size(); ++r) {
      receive.push_back(message(results_, r, piece));
    }
    gathered_[size_t(piece)] = channel_.sendToAll(result, receive);
  }

  void finish(int piece) {
    gathered_[size_t(piece)].wait();
    StageTimer timer(channel_.report(), Stage::kDecode);
    for (int chunk = 0; chunk < channel_.size(); ++chunk) {
      const auto [begin, count] = pieces_.range(chunk, piece);
      const std::byte* const in = results_ + pieces_.offset(chunk, piece);
      check(in, count, chunk);
      codec_.decode(
          in,
          count,
          {0, count},
          result_exponent_,
          job_.bucket.gradient + begin);
    }
  }

  // The second rounding is lost on all ranks alike. Its error becomes the
  // owner's residual, times the world size because the owner's gradients count
  // for so much less in the mean. Without it values far below their block's
  // largest would vanish for good.
  void feedBack(
      const std::vector<const std::byte*>& parts,
      size_t begin,
      size_t count,
      const std::byte* result) {
    constexpr size_t kPart = 4096; // stays in the first cache; whole blocks
    std::array<float, kPart> lost, values;
    const auto world = float(channel_.size());
    for (size_t at = 0; at < count; at += kPart) {
      const BlockCodec::Part part{at, std::min(kPart, count - at)};
      lost.fill(0.0f);
      for (size_t r = 0; r < parts.size(); ++r) {
        codec_.decode(parts[r], count, part, exponents_[r], values.data());
        for (size_t i = 0; i < part.count; ++i) {
          lost[i] += values[i];
        }
      }
      codec_.decode(result, count, part, result_exponent_, values.data());
      float* const residual = job_.residual + begin + at;
      for (size_t i = 0; i < part.count; ++i) {
        lost[i] -= world * values[i];
        residual[i] += lost[i];
      }
      if (job_.sent != nullptr) {
        std::vector<float>& all = job_.sent->lost;
        all.insert(all.end(), lost.begin(), lost.begin() + part.count);
      }
    }
  }

  void keep(Sent& sent) const {
    sent.trailer = channel_.trailerBytes();
    sent.lost_offset = pieces_.range(me(), 0).begin;
    sent.keep({encoded_, pieces_.end()});
  }

  int me() const {
    return channel_.rank();
  }
  Bytes message(std::byte* buffer, int chunk, int piece) const {
    return {
        buffer + pieces_.offset(chunk, piece),
        pieces_.messageBytes(chunk, piece)};
  }
  size_t ownStride() const {
    size_t longest = 0;
    for (int piece = 0; piece < pieces_.count(); ++piece) {
      longest = std::max(longest, pieces_.messageBytes(me(), piece));
    }
    return aligned(longest);
  }
  std::byte* messageFrom(int rank, int piece) const {
    return received_ +
        stride_ * (size_t(piece) * size_t(channel_.size()) + size_t(rank));
  }
  void check(const std::byte* in, size_t count, int rank) const {
    if (!codec_.valid(in, count)) {
      throw PayloadError(
          "rank " + std::to_string(rank) + ", bucket " +
          std::to_string(channel_.bucketIndex()) +
          ": a block's scale is negative or not finite");
    }
  }

  const BlockCodec& codec_;
  Job& job_;
  Channel& channel_;
  Pieces pieces_;
  size_t stride_;
  std::byte* encoded_;
  std::byte* received_;
  std::byte* results_;
  std::vector<Channel::Pending> scattered_, gathered_;
  std::vector<int> exponents_;
  int result_exponent_;
};

TwoPhase::TwoPhase(std::unique_ptr<BlockCodec> codec, size_t piece_bytes)
    : codec_(std::move(codec)), piece_bytes_(piece_bytes) {}

void TwoPhase::run(Job& job) {
  TwoPhaseRun(*this, job).run();
}

void TwoPhase::addSent(
    const Sent& sent,
    std::span<const Slot> /*slots*/,
    float* dense) {
  const Pieces pieces(
      *codec_, sent.numel, sent.world, {piece_bytes_, sent.trailer});
  std::vector<float> values;
  for (int piece = 0; piece < pieces.count(); ++piece) {
    for (int chunk = 0; chunk < sent.world; ++chunk) {
      const auto [begin, count] = pieces.range(chunk, piece);
      values.resize(count);
      codec_->decode(
          sent.payload.data() + pieces.offset(chunk, piece),
          count,
          {0, count},
          sent.exponent,
          values.data());
      for (size_t i = 0; i < count; ++i) {
        dense[begin + i] += values[i];
      }
    }
  }
}

uint64_t TwoPhase::wireBytes(
    std::span<const Slot> /*slots*/,
    size_t n,
    int world) const {
  const Pieces pieces(*codec_, n, world, {piece_bytes_, 0});
  return 2 * uint64_t(pieces.payloadBytes()) * uint64_t(world - 1) /
      uint64_t(world);
}

} // namespace commprof::compress
