#include "base/crc32.h"
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

uint32_t crcBitByBit(const std::string& data) {
  uint32_t c = 0xffffffffu;
  for (const unsigned char byte : data) {
    c ^= byte;
    for (int bit = 0; bit < 8; ++bit) {
      c = (c & 1) ? 0xedb88320u ^ (c >> 1) : c >> 1;
    }
  }
  return c ^ 0xffffffffu;
}

// crc32() processes 64 bytes at once, then 8 bytes at once.
void checksumsOfAllLengths() {
  std::string data(400, 0);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = char(i * i * 7 + 3);
  }
  for (size_t begin = 0; begin < 8; ++begin) {
    for (size_t length = 0; length < 330; ++length) {
      CHECK_EQ(
          crc32(&data[begin], length), crcBitByBit(data.substr(begin, length)));
    }
  }
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

// Three blocks of 24 + 1000 bytes fit into 4000 bytes, after the file header of
// 32 bytes.
void blocksThatDoNotFitAreNotWritten(const trace_file::Directory& directory) {
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
    CHECK(writer.writeJson(BlockType::kEnd, std::string(872, 'y')));
    CHECK_EQ(sizeOf(path), 4000u);
    CHECK(!writer.writeJson(BlockType::kEnd, ""));
    CHECK_EQ(sizeOf(path), 4000u);
  }
  CHECK(writer.writeJson(BlockType::kGroup, payload));
  const trace_file::Content content = trace_file::read(path);
  CHECK(content.sound);
  CHECK_EQ(content.groups.size(), 4u);
  CHECK_EQ(content.end.size(), 1u);
  CHECK_EQ(sizeOf(path), 4000u + 1024);
}

std::string summary(int number, size_t bytes) {
  return std::to_string(number) + std::string(bytes - 1, 'x');
}

// Summaries alternate between two places. Longer summaries get two larger
// places.
void summariesDoNotGrowTheFile(const trace_file::Directory& directory) {
  const std::string path = directory / "summaries.trace";
  TraceWriter writer(path, 1);
  const uint64_t small = 2 * (24 + (48 << 10));
  const uint64_t large = 2 * (24 + (384 << 10));
  for (int i = 0; i < 9; ++i) {
    CHECK(writer.writeSummary(summary(i, 1000 + i)));
  }
  CHECK_EQ(sizeOf(path), 32 + small);
  CHECK(writer.writeJson(BlockType::kGroup, "group"));
  for (int i = 0; i < 9; ++i) {
    CHECK(writer.writeSummary(summary(i, 60'000 + i)));
    CHECK(writer.writeSummary(summary(i, 1000)));
  }
  CHECK(!writer.writeSummary(summary(0, TraceWriter::kMaxSummaryBytes + 1)));
  CHECK(writer.writeSummary(summary(7, TraceWriter::kMaxSummaryBytes)));
  CHECK_EQ(sizeOf(path), 32 + small + 24 + 5 + large);
  CHECK(sizeOf(path) < 1'000'000);
  const trace_file::Content content = trace_file::read(path);
  CHECK(content.sound);
  CHECK_EQ(content.groups.size(), 1u);
  CHECK_EQ(content.summaries.size(), 4u);
  CHECK(content.summaries[0].starts_with("8xxx"));
  CHECK(content.summaries[1].starts_with("7xxx"));
  CHECK(content.summaries[2] == summary(7, TraceWriter::kMaxSummaryBytes));
  CHECK(content.summaries[3].starts_with("8xxx"));
}

void aFullDiskKeepsTheLastSummary(const trace_file::Directory& directory) {
  const std::string path = directory / "full-summary.trace";
  TraceWriter writer(path, 1);
  const trace_file::FullDisk full(60'000);
  CHECK(writer.writeSummary(summary(1, 100)));
  CHECK(!writer.writeSummary(summary(2, 100)));
  CHECK_EQ(writer.error(), EFBIG);
  const trace_file::Content content = trace_file::read(path);
  CHECK(content.sound);
  CHECK_EQ(content.summaries.size(), 1u);
}

void aHalfWrittenSummaryIsSkipped(const trace_file::Directory& directory) {
  const std::string path = directory / "half-summary.trace";
  TraceWriter writer(path, 1);
  CHECK(writer.writeSummary(summary(1, 2000)));
  CHECK(writer.writeSummary(summary(2, 2000)));
  {
    const trace_file::FullDisk full(32 + 24 + 1000);
    CHECK(!writer.writeSummary(summary(3, 2000)));
    CHECK_EQ(writer.error(), EFBIG);
  }
  const trace_file::Content content = trace_file::read(path);
  CHECK(content.sound);
  CHECK_EQ(content.summaries.size(), 1u);
  CHECK(content.summaries[0].starts_with("2xxx"));
}

} // namespace

int main() {
  const trace_file::Directory directory;
  knownChecksums();
  checksumsOfAllLengths();
  bytesOnDisk(directory);
  badPathsThrow(directory);
  blocksThatDoNotFitAreNotWritten(directory);
  summariesDoNotGrowTheFile(directory);
  aFullDiskKeepsTheLastSummary(directory);
  aHalfWrittenSummaryIsSkipped(directory);
  return check::report();
}
