#include "tune/compress/exchange/messages/channel.h"

#include <cstring>

#include "base/clock.h"
#include "base/crc32.h"
#include "tune/compress/compressor.h"

namespace commprof::compress {

namespace {

size_t beginSpan(BucketReport& report, Stage stage) {
  report.spans.push_back({stage, nowNs(), 0});
  return report.spans.size() - 1;
}

} // namespace

Channel::Channel(
    Transport& transport,
    BucketReport& report,
    uint32_t bucket_index,
    bool checksum)
    : transport_(transport),
      report_(report),
      bucket_index_(bucket_index),
      checksum_(checksum) {}

void Channel::Pending::wait() {
  if (!transfer_) {
    return; // no other rank
  }
  transfer_->wait();
  transfer_.reset();
  channel_->report_.spans[span_].end_ns = nowNs();
  channel_->verify(received_);
}

Channel::Pending Channel::begin() {
  Pending pending;
  pending.channel_ = this;
  pending.span_ = beginSpan(report_, Stage::kExchange);
  return pending;
}

Channel::Pending Channel::exchange(
    std::span<const Bytes> send,
    std::span<const Bytes> recv) {
  if (size() == 1) {
    return {};
  }
  const std::byte* sealed = nullptr;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) {
      continue;
    }
    report_.wire_bytes += send[r].size();
    if (send[r].data() != sealed) {
      seal(send[r]);
      sealed = send[r].data();
    }
  }
  const std::vector<std::span<const std::byte>> constant(
      send.begin(), send.end());
  Pending pending = begin();
  pending.received_.assign(recv.begin(), recv.end());
  pending.transfer_ = transport_.exchange(constant, recv);
  return pending;
}

Channel::Pending Channel::sendToAll(
    Bytes message,
    std::span<const Bytes> recv) {
  return exchange(std::vector<Bytes>(size_t(size()), message), recv);
}

Channel::Pending Channel::allReduceSum(std::span<float> data) {
  if (size() == 1 || data.empty()) {
    return {};
  }
  report_.wire_bytes += ringBytes(data.size_bytes(), size());
  Pending pending = begin();
  pending.transfer_ = transport_.allReduceSum(data);
  return pending;
}

void Channel::seal(Bytes message) const {
  if (checksum_ && !message.empty()) {
    const size_t length = message.size() - trailerBytes();
    const uint32_t sum = crc32(message.data(), length);
    std::memcpy(message.data() + length, &sum, sizeof(sum));
  }
}

void Channel::verify(std::span<const Bytes> received) const {
  for (size_t r = 0; checksum_ && r < received.size(); ++r) {
    const Bytes message = received[r];
    if (int(r) == rank() || message.empty()) {
      continue;
    }
    const size_t length = message.size() - trailerBytes();
    uint32_t sum;
    std::memcpy(&sum, message.data() + length, sizeof(sum));
    if (sum != crc32(message.data(), length)) {
      throw PayloadError(
          "rank " + std::to_string(transport_.nameOf(int(r))) + ", bucket " +
          std::to_string(bucket_index_) + ": a message's checksum is wrong");
    }
  }
}

uint64_t ringBytes(size_t bytes, int world) {
  return 2 * uint64_t(bytes) * uint64_t(world - 1) / uint64_t(world);
}

StageTimer::StageTimer(BucketReport& report, Stage stage)
    : report_(report), span_(beginSpan(report, stage)) {}

StageTimer::~StageTimer() {
  report_.spans[span_].end_ns = nowNs();
}

} // namespace commprof::compress
