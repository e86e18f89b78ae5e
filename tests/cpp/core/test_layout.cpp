// A test in Python reads the trace that this program writes. The arguments are
// the path of the trace and its metadata.
#include <cstddef>

#include "check.h"
#include "core/recorder.h"
#include "trace_file.h"

using namespace commprof;

namespace {

Record recordOf(Kind kind) {
  const auto k = uint8_t(kind);
  Record record;
  record.timestamp_ns = 1000u + k;
  record.op_id = 2000u + k;
  record.kind = kind;
  record.op = Op(k + 1);
  record.dtype = uint8_t(k + 2);
  record.reduce_op = uint8_t(k + 3);
  record.group = 3000u + k;
  record.thread = 4000u + k;
  record.aux = 5000u + k;
  record.bytes_in = (1ull << 40) + k;
  record.bytes_out = (1ull << 41) + k;
  record.seq = 6000u + k;
  record.flags = 7000u + k;
  record.value = (1ull << 63) + k;
  return record;
}

} // namespace

int main(int argc, char** argv) {
  const trace_file::Directory directory;
  const std::string path = argc > 1 ? argv[1] : directory / "layout.trace";
  Recorder& recorder = Recorder::instance();
  recorder.start({path, "", argc > 2 ? argv[2] : "{}", /*session=*/1});
  size_t kinds = 0;
#define X(name, text)                     \
  recorder.push(recordOf(Kind::k##name)); \
  ++kinds;
  COMMPROF_KINDS(X)
#undef X
  recorder.stop();
  CHECK_EQ(trace_file::read(path).records.size(), kinds);
  CHECK_EQ(offsetof(Record, value), 56u);
  CHECK_EQ(offsetof(RingHeader, head), 64u);
  CHECK_EQ(offsetof(RingHeader, tail), 128u);
  CHECK_EQ(offsetof(RingHeader, dropped), 192u);
  return check::report();
}
