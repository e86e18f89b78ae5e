// Reads the operations of a log, by communicator and kind.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inspector/log_line.h"

namespace commprof::inspector {

// One operation of one rank. The time is negative if no GPU clock measured it,
// or if the log states 0 or an impossible time.
struct Record {
  uint64_t sizeBytes;
  // Sequence number, counted per communicator and kind. Sends and recvs are
  // counted together.
  uint32_t number;
  float timeUs;
};

// Operations of one kind on one communicator, in the order of completion.
struct Stream {
  std::vector<Record> records;
  std::vector<int32_t> peers; // filled only for messages
  uint8_t index = 0; // index of the kind, in order of first appearance
  // Sequence number of the last record, even after that record was taken.
  int64_t lastNumber = -1;
  // Number of records by size, and by algorithm with protocol, such as
  // "RING/LL". Empty if the log does not name algorithms.
  std::map<std::pair<uint64_t, std::string>, uint64_t> algorithms;
  uint64_t untimed = 0; // records without a time of the GPU's clock
  uint64_t graphCaptured = 0;
};

// A send or recv of one rank.
struct Message {
  uint32_t number = 0;
  int32_t peer = -1;
  bool isSend = false;
  const Record* record = nullptr; // null if the record is lost
};

// Ordered messages from one rank to another rank, or the other way. An entry is
// empty if its record is lost.
struct MessageQueue {
  std::deque<std::optional<Record>> messages;
  uint64_t dropped = 0; // number of messages dropped before these
};

// Messages of one rank while its log is followed.
struct FollowedMessages {
  // Sequence number of the first message; -1 if there is no message yet.
  int64_t first = -1;
  // Sequence number of the first message that is not in order yet.
  int64_t next = -1;
  // True once the order cannot be known: a lost message was not identified, or
  // a number came twice.
  bool isUnordered = false;
  std::vector<Message> latest; // in order; without their records
  // Ordered messages that wait for the peer's records, by peer.
  std::map<int32_t, MessageQueue> sent;
  std::map<int32_t, MessageQueue> received;
};

// The part of one process in a communicator.
struct Communicator {
  std::string id;
  std::string name; // "" if the job gave no name
  std::string host; // "" if unknown
  int64_t pid = -1;
  int64_t rank = -1; // rank of this process
  int64_t ranks = -1;
  int64_t nodes = -1;
  // Number of records that the plugin's ring buffer lost before the last dump.
  int64_t dropped = 0;
  // By the host's clock, in µs since 1970; -1 if no dump states its time.
  int64_t firstDumpUs = -1;
  int64_t lastDumpUs = -1;
  std::map<std::string, Stream, std::less<>> streams; // by kind
  uint8_t kinds = 0;
  // For each of the first collectives: the index of its kind (Stream::index).
  std::vector<uint8_t> order;
  FollowedMessages messages;
  // True once functions of follow.h have counted operations of this log.
  bool isCounted = false;
  bool isLeftOut = false; // true if it overlaps another log of the same process
};

// Joins the records of several logs of one process and communicator. A process
// has several logs if, for example, its logs were split by size. The first
// element of the result gets all records; the later logs follow, and are empty.
// Logs that overlap the joined logs, such as copies, lose their records and are
// left out.
//
// May be called again while logs grow: a log whose operations were counted
// stays the first.
std::vector<Communicator*> joinLogs(std::vector<Communicator*> logs);

// One log file, with the log of one process, or with the logs of several
// processes. Only one thread may feed it.
class LogFile {
 public:
  explicit LogFile(std::string name) : name_(std::move(name)) {}

  // Takes the next bytes of the file, in pieces of any size.
  void feed(std::string_view bytes);
  // Takes a last line that has no line end, and frees unused memory.
  void finish();

  const std::string& name() const {
    return name_;
  }
  const std::string& version() const {
    return version_;
  }
  uint64_t lines() const {
    return lines_;
  }
  // Number of lines that cannot be used: a line is no JSON object, or its
  // operation lacks a communicator or a needed field.
  uint64_t damagedLines() const {
    return damagedLines_;
  }
  uint64_t firstDamagedLine() const {
    return firstDamagedLine_;
  }
  uint64_t operations() const {
    return operations_;
  }
  uint64_t proxyTraces() const {
    return proxyTraces_;
  }
  // Times of the first and the last dump, in µs since 1970 by the host's clock;
  // -1 if no dump states its time.
  std::array<int64_t, 2> dumpedUs() const {
    return {firstDumpUs_, lastDumpUs_};
  }
  const std::vector<std::unique_ptr<Communicator>>& communicators() const {
    return communicators_;
  }

 private:
  void takeLine(std::string_view text);
  bool takeOperation(const Operation& operation);
  Communicator* communicatorOf(const Header& header, const Metadata& metadata);
  void describe(const Metadata& metadata);

  std::string name_;
  std::string version_;
  std::string rest_; // beginning of a line whose end has not been read yet
  int64_t firstDumpUs_ = -1;
  int64_t lastDumpUs_ = -1;
  uint64_t lines_ = 0;
  uint64_t damagedLines_ = 0;
  uint64_t firstDamagedLine_ = 0;
  uint64_t operations_ = 0;
  uint64_t proxyTraces_ = 0;
  bool restIsTooLong_ = false;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  Communicator* current_ = nullptr; // communicator of the last header
};

} // namespace commprof::inspector
