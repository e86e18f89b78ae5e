#include "base/crc32.h"
#include "core/process/exit_note.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "check.h"
#include "core/trace_writer.h"
#include "trace_file.h"

using namespace commprof;

namespace {

std::string bytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string closedTrace(
    const trace_file::Directory& directory,
    const std::string& name) {
  const std::string path = directory / name;
  TraceWriter writer(path, 1);
  CHECK(writer.writeJson(BlockType::kEnd, "{}"));
  return path;
}

std::string traceAfter(const std::string& path, int code, bool child_only) {
  const pid_t pid = fork();
  if (pid == 0) {
    noteExitStatus(path);
    noteExitStatus(path);
    if (child_only) {
      const pid_t child = fork();
      if (child == 0) {
        std::exit(code);
      }
      waitpid(child, nullptr, 0);
      std::exit(0);
    }
    std::exit(code);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK(WIFEXITED(status));
  return bytesOf(path);
}

} // namespace

int main() {
#ifdef __GLIBC__
  const trace_file::Directory directory;
  const std::string path = closedTrace(directory, "rank_0.trace");
  const std::string closed = bytesOf(path);
  CHECK(traceAfter(path, 0, false) == closed);
  // A parent sees exit code 256 as 0.
  CHECK(traceAfter(path, 256, false) == closed);
  // Python exits with 120 if it could not flush its output.
  CHECK(traceAfter(path, 120, false) == closed);
  CHECK(traceAfter(path, 3, true) == closed);
  const std::string with_note = traceAfter(path, 3, false);
  const std::string json =
      R"({"ending": {"error": "SystemExit with exit code 3"}})";
  CHECK_EQ(with_note.size(), closed.size() + sizeof(BlockHeader) + json.size());
  CHECK(with_note.starts_with(closed));
  CHECK(with_note.ends_with(json));
  BlockHeader header{};
  std::memcpy(&header, with_note.data() + closed.size(), sizeof(header));
  CHECK_EQ(header.magic, kBlockMagic);
  CHECK(header.type == BlockType::kMetadata);
  CHECK_EQ(header.payload_bytes, json.size());
  CHECK_EQ(header.crc32, crc32(json.data(), json.size()));
#endif
  return check::report();
}
