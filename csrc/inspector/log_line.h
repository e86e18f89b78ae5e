// One line of a log of NCCL Inspector: a JSON object that describes a completed
// operation of one rank, or the dump to which the next lines belong.
//
// Formats v4.0 to v4.2 repeat `header` and `metadata` in each line. From v4.3
// on, only `dump_stats` lines have them, and operations have lines of their
// own. Some tools write the fields of `header` and `metadata` at the top level.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace commprof::inspector {

// The communicator and rank of a line. The texts point into the line.
struct Header {
  std::string_view id;
  std::string_view name;
  int64_t rank = -1;
  int64_t ranks = -1;
  int64_t nodes = -1;
};

struct Metadata {
  std::string_view version;
  std::string_view host;
  int64_t pid = -1;
  int64_t dumpTimestampUs = -1;
};

struct Operation {
  std::string_view kind; // such as "AllReduce", "Send" or "Recv"
  bool isMessage = false;
  int64_t number = -1; // coll_sn or p2p_sn
  // Size on one rank: the call's count times the size of the type.
  int64_t sizeBytes = -1;
  // Time of the channel that took longest: waiting plus transfer.
  double timeUs = -1;
  int64_t peer = -1; // rank in the communicator
  std::string_view timingSource;
  std::string_view algorithm;
  std::string_view protocol;
  bool graphCaptured = false;
};

struct DumpStats {
  int64_t collectiveRecords = 0;
  int64_t collectivesDropped = 0; // total up to this dump
  int64_t messagesDropped = 0;
};

struct LogLine {
  std::optional<Header> header;
  std::optional<Metadata> metadata;
  std::optional<Operation> operation;
  std::optional<DumpStats> dump;
  bool isProxyTrace = false;
};

// Parses one line, without its line end. Returns nullopt if the line is no
// complete JSON object, or is nested too deeply. Unknown keys are skipped.
std::optional<LogLine> parseLine(std::string_view text);

} // namespace commprof::inspector
