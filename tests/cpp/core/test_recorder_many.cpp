#include <filesystem>
#include <thread>

#include "check.h"
#include "core/recorder.h"
#include "trace_file.h"

using namespace commprof;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kRecords = 1'000'000;
#else
constexpr uint64_t kRecords = 10'000'000;
#endif

// The loop waits while many records are unwritten, because no training thread
// is so fast.
void pushAll(uint64_t count) {
  Recorder& recorder = Recorder::instance();
  for (uint64_t i = 0; i < count; ++i) {
    recorder.push(trace_file::numbered(i));
    if ((i & 0xfff) == 0xfff) {
      while (recorder.stats().records_unwritten > (1 << 13)) {
        std::this_thread::yield();
      }
    }
  }
}

uint64_t recordsOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(sizeof(FileHeader));
  uint64_t records = 0;
  for (BlockHeader header;
       file.read(reinterpret_cast<char*>(&header), sizeof(header));
       file.seekg(std::streamoff(header.payload_bytes), std::ios::cur)) {
    CHECK_EQ(header.magic, kBlockMagic);
    if (header.type == BlockType::kRecords) {
      records += header.payload_bytes / sizeof(Record);
    }
  }
  return records;
}

} // namespace

int main() {
  const trace_file::Directory directory;
  Recorder& recorder = Recorder::instance();
  RecorderOptions options{
      directory / "many.trace", directory / "many-", "{}", /*session=*/1};
  // A ring that is less than half full does not wake the helper thread.
  options.flush_interval_ms = 1;
  recorder.start(options);
  std::thread other([] { pushAll(kRecords / 2); });
  pushAll(kRecords / 2);
  other.join();
  recorder.stop();
  const RecorderStats stats = recorder.stats();
  CHECK_EQ(stats.records_written + stats.records_dropped, kRecords);
  CHECK_EQ(stats.records_dropped, 0u);
  CHECK_EQ(recordsOf(directory / "many.trace"), stats.records_written);
  return check::report();
}
