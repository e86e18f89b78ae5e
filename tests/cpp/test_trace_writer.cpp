// The trace writer: the bytes it writes, and what a full disk does to them.
#include "core/trace_writer.h"

#include <sys/stat.h>

#include <system_error>

#include "check.h"
#include "trace_file.h"

using namespace commprof;

namespace {

uint64_t sizeOf(const std::string& path) {
  return std::filesystem::file_size(path);
}

void knownChecksums() {
  CHECK_EQ(crc32("123456789", 9), 0xcbf43926u);
  CHECK_EQ(crc32("", 0), 0u);
  CHECK_EQ(crc32("a", 1), 0xe8b7be43u);
  const std::vector<unsigned char> ones(32, 0xff);
  CHECK_EQ(crc32(ones.data(), ones.size()), 0xff6cab0bu);
}

void bytesOnDisk(const trace_file::Directory& directory) {
  const std::string path = directory / "bytes.trace";
  TraceWriter writer(path, 0x1122334455667788u);
  CHECK_EQ(writer.bytesWritten(), 32u);
  CHECK(writer.writeJson(BlockType::kMetadata, "123456789"));
  std::ifstream file(path, std::ios::binary);
  const std::string data{std::istreambuf_iterator<char>(file), {}};
  const std::string expected(
      "COMMPROF"
      "\1\0\0\0\40\0\0\0" // version, header_bytes
      "\x88\x77\x66\x55\x44\x33\x22\x11" // session
      "\0\0\0\0\0\0\0\0"
      "CPKB\1\0\0\0" // magic, type
      "\11\0\0\0\0\0\0\0" // payload_bytes
      "\x26\x39\xf4\xcb\0\0\0\0" // crc32
      "123456789",
      65);
  CHECK(data == expected);
  CHECK_EQ(writer.bytesWritten(), 65u);
}

void badPathsThrow(const trace_file::Directory& directory) {
  CHECK_THROWS(std::system_error, TraceWriter(directory / "no/a.trace", 1));
  CHECK_THROWS(std::system_error, TraceWriter(directory.path.string(), 1));
  CHECK_THROWS(std::system_error, TraceWriter("/dev/full", 1));
  try {
    TraceWriter("/dev/full", 1);
  } catch (const std::system_error& error) {
    CHECK_EQ(error.code().value(), ENOSPC);
    CHECK(std::string(error.what()).find("/dev/full") != std::string::npos);
  }
}

// Blocks of 24 + 1000 bytes behind 32: three fit into 4000 bytes.
void fullDiskCutsBack(const trace_file::Directory& directory) {
  const std::string path = directory / "full.trace";
  TraceWriter writer(path, 1);
  const std::string payload(1000, 'x');
  {
    const trace_file::FullDisk full(4000);
    for (int i = 0; i < 3; ++i) {
      CHECK(writer.writeJson(BlockType::kGroup, payload));
    }
    CHECK_EQ(writer.error(), 0);
    for (int i = 0; i < 3; ++i) {
      CHECK(!writer.writeJson(BlockType::kGroup, payload));
      CHECK_EQ(writer.error(), EFBIG);
      CHECK_EQ(sizeOf(path), 32u + 3 * 1024);
      CHECK_EQ(writer.bytesWritten(), 32u + 3 * 1024);
    }
    CHECK(trace_file::read(path).sound);
    // 896 bytes are left: a smaller block fits.
    CHECK(writer.writeJson(BlockType::kEnd, std::string(872, 'y')));
    CHECK_EQ(sizeOf(path), 4000u);
    // Not even a header fits.
    CHECK(!writer.writeJson(BlockType::kEnd, ""));
    CHECK_EQ(sizeOf(path), 4000u);
  }
  CHECK(writer.writeJson(BlockType::kGroup, payload)); // room again
  const trace_file::Content content = trace_file::read(path);
  CHECK(content.sound);
  CHECK_EQ(content.groups.size(), 4u);
  CHECK_EQ(content.end.size(), 1u);
  CHECK_EQ(sizeOf(path), 4000u + 1024);
}

} // namespace

int main() {
  const trace_file::Directory directory;
  knownChecksums();
  bytesOnDisk(directory);
  badPathsThrow(directory);
  fullDiskCutsBack(directory);
  return check::report();
}
