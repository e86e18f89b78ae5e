#include "inspector/log_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

namespace commprof::inspector {

namespace {

// A longer line counts as damaged. The plugin's own lines have at most 16 KB.
constexpr size_t kLongestLine = size_t(4) << 20;
constexpr int64_t kMostRanks = 1 << 24;
// NCCL has fewer than ten kinds of operations.
constexpr uint8_t kMostKinds = 64;
// The order of at most this many calls of a communicator is kept.
constexpr size_t kMostOrdered = size_t(1) << 16;
constexpr size_t kMostAlgorithms = 4096;
// In microseconds: 11.6 days. A longer time is damage.
constexpr double kLongestUs = 1e12;
// The plugin cuts times off to whole microseconds
// (calculateKernelGpuExecTimeUsecs in its inspector.cc). So a written time is
// half a microsecond too short on average.
constexpr double kCutOffUs = 0.5;

double measuredUs(double writtenUs) {
  const bool isWhole = std::floor(writtenUs) == writtenUs;
  return isWhole ? writtenUs + kCutOffUs : writtenUs;
}

uint64_t operationsOf(const Communicator& log) {
  uint64_t operations = 0;
  for (const auto& [kind, stream] : log.streams) {
    operations += stream.records.size();
  }
  return operations;
}

// True if `log` begins after the end of `before`. If both logs have a part of
// the same dump, sequence numbers decide.
bool follows(const Communicator& log, const Communicator& before) {
  if (log.firstDumpUs != before.lastDumpUs) {
    return before.lastDumpUs >= 0 && log.firstDumpUs > before.lastDumpUs;
  }
  return std::all_of(
      log.streams.begin(), log.streams.end(), [&](const auto& of) {
        const auto known = before.streams.find(of.first);
        return known == before.streams.end() || of.second.records.empty() ||
            int64_t(of.second.records.front().number) >
            known->second.lastNumber;
      });
}

void append(Communicator& log, Communicator& into) {
  into.name = into.name.empty() ? log.name : into.name;
  into.dropped = std::max(into.dropped, log.dropped);
  std::array<uint8_t, kMostKinds> indexes{};
  for (auto& [kind, stream] : log.streams) {
    const auto [known, isNew] = into.streams.try_emplace(kind);
    Stream& whole = known->second;
    if (isNew) {
      whole.index = into.kinds++;
    }
    indexes[stream.index] = whole.index;
    whole.records.insert(
        whole.records.end(), stream.records.begin(), stream.records.end());
    whole.peers.insert(
        whole.peers.end(), stream.peers.begin(), stream.peers.end());
    for (const auto& [of, records] : stream.algorithms) {
      whole.algorithms[of] += records;
    }
    whole.untimed += stream.untimed;
    whole.graphCaptured += stream.graphCaptured;
    Stream emptied;
    emptied.index = stream.index;
    emptied.lastNumber = stream.lastNumber;
    stream = std::move(emptied);
  }
  for (uint8_t kind : log.order) {
    if (into.order.size() < kMostOrdered) {
      into.order.push_back(indexes[kind]);
    }
  }
  log.order.clear();
}

void leaveOut(Communicator& log) {
  log.isLeftOut = true;
  for (auto& [kind, stream] : log.streams) {
    std::vector<Record>().swap(stream.records);
    std::vector<int32_t>().swap(stream.peers);
  }
}

} // namespace

std::vector<Communicator*> joinLogs(std::vector<Communicator*> logs) {
  std::erase_if(logs, [](Communicator* log) {
    if (log->isLeftOut) {
      leaveOut(*log); // drops operations written since the last call
    }
    return log->isLeftOut;
  });
  std::sort(logs.begin(), logs.end(), [](const auto* a, const auto* b) {
    if (a->isCounted != b->isCounted) {
      return a->isCounted;
    }
    // If there are copies, the most complete one comes first.
    return a->firstDumpUs != b->firstDumpUs
        ? a->firstDumpUs < b->firstDumpUs
        : operationsOf(*a) > operationsOf(*b);
  });
  std::vector<Communicator*> joined{logs.front()};
  for (auto* log : std::span(logs).subspan(1)) {
    const Communicator& last = *joined.back();
    if (follows(*log, last)) {
      joined.push_back(log);
    } else {
      leaveOut(*log);
    }
  }
  for (auto* log : std::span(joined).subspan(1)) {
    append(*log, *joined.front());
  }
  return joined;
}

void LogFile::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    if (end == std::string_view::npos || !rest_.empty() || restIsTooLong_) {
      restIsTooLong_ =
          restIsTooLong_ || rest_.size() + part.size() > kLongestLine;
      if (restIsTooLong_) {
        rest_.clear();
      } else {
        rest_ += part;
      }
    }
    if (end == std::string_view::npos) {
      return;
    }
    if (restIsTooLong_) {
      takeLine("{"); // this line counts as damaged
      restIsTooLong_ = false;
    } else if (!rest_.empty()) {
      takeLine(rest_);
      rest_.clear();
    } else {
      takeLine(part);
    }
    bytes.remove_prefix(end + 1);
  }
}

void LogFile::finish() {
  if (!rest_.empty() || restIsTooLong_) {
    takeLine(restIsTooLong_ ? std::string_view("{") : rest_);
  }
  std::string().swap(rest_);
  for (const auto& communicator : communicators_) {
    communicator->order.shrink_to_fit();
    for (auto& [kind, stream] : communicator->streams) {
      stream.records.shrink_to_fit();
      stream.peers.shrink_to_fit();
    }
  }
}

void LogFile::takeLine(std::string_view text) {
  ++lines_;
  // Some tools begin a file with UTF-8's byte order mark. In joined logs, the
  // mark may also be in the middle.
  if (text.starts_with("\xEF\xBB\xBF")) {
    text.remove_prefix(3);
  }
  if (text.find_first_not_of(" \t\r") == std::string_view::npos) {
    return;
  }
  const std::optional<LogLine> line = parseLine(text);
  bool isUsed = line.has_value();
  if (line) {
    if (line->metadata) {
      describe(*line->metadata);
    }
    if (line->header) {
      current_ =
          communicatorOf(*line->header, line->metadata.value_or(Metadata()));
      if (current_ != nullptr && line->metadata &&
          line->metadata->dumpTimestampUs >= 0) {
        const int64_t dumpUs = line->metadata->dumpTimestampUs;
        current_->firstDumpUs = current_->firstDumpUs < 0
            ? dumpUs
            : std::min(current_->firstDumpUs, dumpUs);
        current_->lastDumpUs = std::max(current_->lastDumpUs, dumpUs);
      }
    }
    if (line->dump && current_ != nullptr) {
      current_->dropped = std::max(
          current_->dropped,
          line->dump->collectivesDropped + line->dump->messagesDropped);
    }
    if (line->operation) {
      isUsed = takeOperation(*line->operation);
      operations_ += isUsed;
    }
    proxyTraces_ += line->isProxyTrace;
  }
  if (!isUsed) {
    firstDamagedLine_ = damagedLines_ == 0 ? lines_ : firstDamagedLine_;
    ++damagedLines_;
  }
}

bool LogFile::takeOperation(const Operation& operation) {
  constexpr int64_t kMostNumber = std::numeric_limits<uint32_t>::max();
  if (current_ == nullptr || operation.kind.empty() || operation.number < 0 ||
      operation.number > kMostNumber || operation.sizeBytes < 0) {
    return false;
  }
  // Records of messages have a peer, and other records have none.
  const bool isOfMessages =
      operation.kind == "Send" || operation.kind == "Recv";
  if (operation.isMessage != isOfMessages) {
    return false;
  }
  auto found = current_->streams.find(operation.kind);
  if (found == current_->streams.end()) {
    if (current_->kinds == kMostKinds) {
      return false;
    }
    found = current_->streams.try_emplace(std::string(operation.kind)).first;
    found->second.index = current_->kinds++;
  }
  Stream& stream = found->second;
  if (!operation.isMessage && current_->order.size() < kMostOrdered) {
    current_->order.push_back(stream.index);
  }
  if (!operation.algorithm.empty() &&
      stream.algorithms.size() < kMostAlgorithms) {
    std::string name(operation.algorithm);
    if (!operation.protocol.empty()) {
      name += '/';
      name += operation.protocol;
    }
    ++stream.algorithms[{uint64_t(operation.sizeBytes), std::move(name)}];
  }
  // Logs up to v3 name no source: their times are from the GPU's clock, or
  // missing. A time of 0 is missing, or was below one microsecond.
  const bool isTimed = operation.timeUs > 0 && operation.timeUs < kLongestUs &&
      (operation.timingSource.empty() ||
       operation.timingSource == "kernel_gpu");
  stream.untimed += !isTimed;
  stream.graphCaptured += operation.graphCaptured;
  if (operation.isMessage) {
    const bool isRank = operation.peer >= 0 && operation.peer < current_->ranks;
    stream.peers.push_back(isRank ? int32_t(operation.peer) : -1);
  }
  stream.lastNumber = operation.number;
  stream.records.push_back(
      {uint64_t(operation.sizeBytes),
       uint32_t(operation.number),
       isTimed ? float(measuredUs(operation.timeUs)) : -1.0F});
  return true;
}

Communicator* LogFile::communicatorOf(
    const Header& header,
    const Metadata& metadata) {
  const auto isSame = [&](const Communicator& communicator) {
    return communicator.id == header.id && communicator.rank == header.rank &&
        communicator.pid == metadata.pid && communicator.host == metadata.host;
  };
  if (current_ != nullptr && isSame(*current_)) {
    return current_;
  }
  if (header.id.empty() || header.rank < 0 || header.ranks <= header.rank ||
      header.ranks > kMostRanks) {
    return nullptr;
  }
  for (const auto& communicator : communicators_) {
    if (isSame(*communicator)) {
      return communicator.get();
    }
  }
  auto communicator = std::make_unique<Communicator>();
  communicator->id = header.id;
  communicator->name = header.name == "unknown" ? "" : header.name;
  communicator->host = metadata.host;
  communicator->pid = metadata.pid;
  communicator->rank = header.rank;
  communicator->ranks = header.ranks;
  communicator->nodes = header.nodes;
  communicators_.push_back(std::move(communicator));
  return communicators_.back().get();
}

void LogFile::describe(const Metadata& metadata) {
  if (version_.empty() && !metadata.version.empty()) {
    version_ = metadata.version;
  }
  const int64_t dumpUs = metadata.dumpTimestampUs;
  if (dumpUs >= 0) {
    firstDumpUs_ = firstDumpUs_ < 0 ? dumpUs : std::min(firstDumpUs_, dumpUs);
    lastDumpUs_ = std::max(lastDumpUs_, dumpUs);
  }
}

} // namespace commprof::inspector
