#include "torch/compress/compression_records.h"

#include <algorithm>
#include <bit>

#include "base/clock.h"
#include "core/recorder.h"

namespace commprof {

namespace {

uint64_t nameBits(const std::string& scheme) {
  uint64_t bits = 0;
  const size_t length = std::min(scheme.find(':'), scheme.size());
  for (size_t i = 0; i < std::min<size_t>(8, length); ++i) {
    bits |= uint64_t(uint8_t(scheme[i])) << (8 * i);
  }
  return bits;
}

uint32_t counted(uint64_t values) {
  return uint32_t(std::min<uint64_t>(values, UINT32_MAX));
}

} // namespace

void recordReport(
    const compress::BucketReport& report,
    const std::string& scheme,
    uint32_t index,
    uint64_t op_id) {
  Recorder& recorder = Recorder::instance();
  if (op_id == 0 || !recorder.enabled()) {
    return;
  }
  Record record;
  record.op_id = op_id;
  record.thread = Recorder::threadId();
  for (const compress::Span& span : report.spans) {
    record.kind = Kind::kSpan;
    record.aux = uint32_t(span.stage);
    record.timestamp_ns = span.begin_ns;
    record.value = span.end_ns;
    recorder.push(record);
  }
  record.kind = Kind::kCompression;
  record.timestamp_ns = nowNs();
  record.aux = index;
  record.bytes_in = report.payload_bytes;
  record.bytes_out = report.wire_bytes;
  record.value = nameBits(scheme);
  record.flags = report.nonfinite ? kNonFinite : 0;
  recorder.push(record);
  if (report.has_quality) {
    record.kind = Kind::kQuality;
    record.aux = counted(report.saturated);
    record.seq = counted(report.zeroed);
    record.bytes_in = std::bit_cast<uint64_t>(report.relative_error);
    record.bytes_out = std::bit_cast<uint64_t>(report.cosine);
    record.value = std::bit_cast<uint64_t>(report.residual_ratio);
    record.flags = 0;
    recorder.push(record);
  }
}

} // namespace commprof
