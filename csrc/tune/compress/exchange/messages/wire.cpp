#include "tune/compress/exchange/messages/wire.h"

#include <bit>
#include <cstring>

#include "base/crc32.h"
#include "base/text.h"
#include "tune/compress/codecs/half_scale.h"
#include "tune/compress/compressor.h"

namespace commprof::compress {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint8_t kMagic = 0xc7;
constexpr uint8_t kVersion = 4;
constexpr uint8_t kNonfinite = 1;

struct Layout {
  uint8_t magic;
  uint8_t version;
  uint16_t check; // low 16 bits of the CRC-32 of this struct with check = 0
  uint8_t scheme;
  uint8_t flags;
  int8_t exponent;
  uint8_t reserved;
  uint32_t n;
  uint32_t k;
  uint64_t signature;
  uint32_t step;
  uint16_t index;
  uint16_t options;
};
static_assert(sizeof(Layout) == kHeaderBytes);

uint16_t checkOf(Layout layout) {
  layout.check = 0;
  return uint16_t(crc32(&layout, sizeof(layout)));
}

std::string inBucket(int rank, uint32_t index) {
  return textOf("rank ", rank, ", bucket ", index, ": ");
}

} // namespace

const char* schemeName(SchemeCode code) {
#define X(scheme, value, name, feedback, exchange, meaning) \
  if (code == SchemeCode::k##scheme) {                      \
    return name;                                            \
  }
  COMMPROF_SCHEMES(X)
#undef X
  return "unknown";
}

HeaderBytes pack(const Header& header) {
  Layout layout{
      kMagic,
      kVersion,
      0,
      uint8_t(header.scheme),
      header.nonfinite ? kNonfinite : uint8_t(0),
      header.exponent,
      0,
      header.n,
      header.k,
      header.signature,
      header.step,
      header.index,
      header.options};
  layout.check = checkOf(layout);
  return std::bit_cast<HeaderBytes>(layout);
}

Header unpack(std::span<const std::byte> bytes, int rank, uint32_t index) {
  Layout layout;
  if (bytes.size() != sizeof(layout)) {
    throw PayloadError(
        inBucket(rank, index) + "the header is not 32 bytes long");
  }
  std::memcpy(&layout, bytes.data(), sizeof(layout));
  if (layout.magic != kMagic || layout.check != checkOf(layout)) {
    throw PayloadError(
        inBucket(rank, index) +
        "the header is damaged, or was sent by another version of commprof: "
        "run the same version on all ranks");
  }
  if (layout.version != kVersion) {
    throw DisagreementError(textOf(
        inBucket(rank, index),
        "that rank sends version ",
        layout.version,
        " of the wire format, but this rank expects version ",
        kVersion,
        ": run the same version of commprof on all ranks"));
  }
  if (layout.exponent < kMinHalfExponent ||
      layout.exponent > kMaxHalfExponent) {
    throw PayloadError(
        inBucket(rank, index) + "the header's scale exponent is out of range");
  }
  return Header{
      SchemeCode(layout.scheme),
      (layout.flags & kNonfinite) != 0,
      layout.exponent,
      layout.options,
      layout.n,
      layout.k,
      layout.signature,
      layout.step,
      layout.index};
}

void checkAgreement(
    const Header& mine,
    int my_rank,
    const Header& theirs,
    int their_rank) {
  const auto compare = [&](const char* field, auto here, auto there) {
    if (here != there) {
      throw DisagreementError(textOf(
          "ranks disagree in bucket ",
          mine.index,
          ": ",
          field,
          " is ",
          there,
          " on rank ",
          their_rank,
          " and ",
          here,
          " on rank ",
          my_rank));
    }
  };
  compare("step", mine.step, theirs.step);
  compare("index", mine.index, theirs.index);
  compare(
      "scheme",
      std::string(schemeName(mine.scheme)),
      std::string(schemeName(theirs.scheme)));
  compare("n (values)", mine.n, theirs.n);
  compare(
      "k (number of values to send, or rank of the factors)", mine.k, theirs.k);
  compare("hash of options and seed", mine.options, theirs.options);
  compare("signature of parameters", mine.signature, theirs.signature);
}

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
