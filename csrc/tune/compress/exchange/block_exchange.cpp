#include "tune/compress/exchange/block_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "tune/compress/exchange/split_gather.h"

namespace commprof::compress {

void encodePiece(
    const BlockCodec& codec,
    const Job& job,
    Pieces::Range range,
    std::byte* out) {
  const auto [begin, count] = range;
  if (count == 0) {
    return;
  }
  Bucket part = job.bucket;
  part.gradient += begin;
  part.numel = count;
  float* const residual = job.residual ? job.residual + begin : nullptr;
  const uint32_t max_bits = largestBits(part, residual);
  PieceNote note;
  note.finite = isFinite(max_bits);
  if (note.finite) {
    note.exponent = halfExponent(max_bits);
    codec.encode(part.gradient, residual, count, note.exponent, out);
  }
  putNote(note, out + codec.bytes(count));
}

PieceNote checkPiece(
    const BlockCodec& codec,
    const Channel& channel,
    int rank,
    const std::byte* in,
    size_t count) {
  if (count == 0) {
    return {};
  }
  const auto note = readNote(in + codec.bytes(count));
  if (!note) {
    refusePayload(rank, channel, "a piece ends with invalid metadata");
  }
  if (note->finite && !codec.valid(in, count)) {
    refusePayload(rank, channel, "a block's scale is negative or not finite");
  }
  return *note;
}

namespace {

// Exchanges one bucket. Pieces use the slots of a small ring buffer, so that
// the bytes in use stay in the caches.
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

  // Number of pieces that are sent before the first one is summed, so that the
  // link always has a next piece.
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

namespace {

// Exchanges one bucket. Some pieces are sent to their owners before the first
// one is summed, and some sums are sent back before the first one is decoded,
// so that the link always has a next piece.
class TwoPhaseRun {
 public:
  TwoPhaseRun(
      const BlockCodec& codec,
      const Pieces& pieces,
      BlockScratch& scratch,
      Job& job)
      : codec_(codec),
        job_(job),
        channel_(job.channel),
        pieces_(pieces),
        stride_(ownStride()),
        encoded_(scratch.encoded.reserve(pieces_.end())),
        received_(scratch.received.reserve(
            stride_ * size_t(pieces_.count()) * size_t(channel_.size()))),
        results_(scratch.results.reserve(pieces_.end())),
        scattered_(size_t(pieces_.count())),
        gathered_(size_t(pieces_.count())) {
    notes_.resize(size_t(channel_.size()));
    exponents_.resize(size_t(channel_.size()));
  }

  void run() {
    const int count = pieces_.count();
    for (int i = 0; i < count + kAhead + kBehind; ++i) {
      if (i < count) {
        scatter(i);
      }
      if (i >= kAhead && i - kAhead < count) {
        reduce(i - kAhead);
      }
      if (i >= kAhead + kBehind) {
        finish(i - kAhead - kBehind);
      }
    }
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
        encodePiece(
            codec_,
            job_,
            pieces_.range(chunk, piece),
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
        notes_[size_t(r)] =
            checkPiece(codec_, channel_, r, parts.back(), count);
      }
      if (count != 0) {
        sum(parts, begin, count, result.data());
      }
    }
    std::vector<Bytes> receive;
    for (int r = 0; r < channel_.size(); ++r) {
      receive.push_back(message(results_, r, piece));
    }
    gathered_[size_t(piece)] = channel_.sendToAll(result, receive);
  }

  void sum(
      const std::vector<const std::byte*>& parts,
      size_t begin,
      size_t count,
      std::byte* result) {
    PieceNote note;
    note.exponent = kMaxHalfExponent;
    for (size_t r = 0; r < parts.size(); ++r) {
      exponents_[r] = notes_[r].exponent;
      note.exponent = std::min(note.exponent, exponents_[r]);
      note.finite = note.finite && notes_[r].finite;
    }
    if (note.finite) {
      codec_.reduce(parts, exponents_, count, result);
      if (job_.residual != nullptr) {
        feedBack(parts, {begin, count}, note.exponent, result);
      }
    }
    putNote(note, result + codec_.bytes(count));
  }

  void finish(int piece) {
    gathered_[size_t(piece)].wait();
    StageTimer timer(channel_.report(), Stage::kDecode);
    for (int chunk = 0; chunk < channel_.size(); ++chunk) {
      const auto [begin, count] = pieces_.range(chunk, piece);
      const std::byte* const in = results_ + pieces_.offset(chunk, piece);
      const PieceNote note = checkPiece(codec_, channel_, chunk, in, count);
      job_.finite = job_.finite && note.finite;
      if (note.finite) {
        codec_.decode(
            in, count, {0, count}, note.exponent, job_.bucket.gradient + begin);
      }
    }
  }

  // Adds the error of the second rounding to the owner's residual. Otherwise,
  // values far below the largest value of their block would never be sent. The
  // error is multiplied by the world size, because the mean divides the owner's
  // gradients by the world size.
  void feedBack(
      const std::vector<const std::byte*>& parts,
      Pieces::Range range,
      int result_exponent,
      const std::byte* result) {
    const auto [begin, count] = range;
    constexpr size_t kPart = 4096; // whole blocks that fit into the L1 cache
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
      codec_.decode(result, count, part, result_exponent, values.data());
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

  static constexpr int kAhead =
      3; // number of pieces sent before the first is summed
  // Number of pieces summed before the first is decoded.
  static constexpr int kBehind = 2;

  const BlockCodec& codec_;
  Job& job_;
  Channel& channel_;
  const Pieces& pieces_;
  size_t stride_;
  std::byte* encoded_;
  std::byte* received_;
  std::byte* results_;
  std::vector<Channel::Pending> scattered_, gathered_;
  std::vector<PieceNote> notes_;
  std::vector<int> exponents_;
};

} // namespace

void runTwoPhases(
    const BlockCodec& codec,
    const Pieces& pieces,
    BlockScratch& scratch,
    Job& job) {
  TwoPhaseRun(codec, pieces, scratch, job).run();
}

} // namespace commprof::compress
