#include "inspector/log_line.h"

#include <charconv>

namespace commprof::inspector {

namespace {

constexpr int kDeepest = 32;

// Reads JSON values from left to right. After a failure, ok() is false.
class Cursor {
 public:
  explicit Cursor(std::string_view text)
      : at_(text.data()), end_(text.data() + text.size()) {}

  bool ok() const {
    return ok_;
  }

  bool atEnd() {
    skipSpace();
    return at_ == end_;
  }

  bool take(char c) {
    skipSpace();
    if (at_ == end_ || *at_ != c) {
      return false;
    }
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!take(c)) {
      fail();
    }
  }

  // Returns the characters between the quotes; escapes are not decoded.
  std::string_view string() {
    expect('"');
    const char* const begin = at_;
    while (at_ != end_ && *at_ != '"') {
      at_ += *at_ == '\\' && end_ - at_ > 1 ? 2 : 1;
    }
    const std::string_view text(begin, size_t(at_ - begin));
    expect('"');
    return text;
  }

  // Reads a number, with or without quotes. Returns -1 for any other value.
  double number() {
    skipSpace();
    if (at_ != end_ && *at_ == '"') {
      return parsed(string());
    }
    const char* const begin = at_;
    skip(0);
    return parsed({begin, size_t(at_ - begin)});
  }

  int64_t integer() {
    skipSpace();
    int64_t value = 0;
    const auto [rest, error] = std::from_chars(at_, end_, value);
    if (error == std::errc() && (rest == end_ || !isOfNumber(*rest))) {
      at_ = rest;
      return value;
    }
    const double inexact = number();
    return inexact >= 0 && inexact < 9e18 ? int64_t(inexact) : -1;
  }

  std::string_view text() {
    skipSpace();
    if (at_ != end_ && *at_ == '"') {
      return string();
    }
    skip(0);
    return {};
  }

  bool boolean() {
    skipSpace();
    const char* const begin = at_;
    skip(0);
    const std::string_view written(begin, size_t(at_ - begin));
    return written == "true" || written == "1" || written == "\"true\"";
  }

  // Calls `field(key)` for each key of an object. `field` must read the value.
  template <class Field>
  void object(Field field) {
    expect('{');
    if (take('}')) {
      return;
    }
    while (ok_) {
      const std::string_view key = string();
      expect(':');
      if (!ok_) {
        return;
      }
      field(key);
      if (!take(',')) {
        expect('}');
        return;
      }
    }
  }

  void skip(int depth) {
    skipSpace();
    if (at_ == end_ || depth > kDeepest) {
      fail();
    } else if (*at_ == '"') {
      string();
    } else if (*at_ == '{') {
      object([&](std::string_view) { skip(depth + 1); });
    } else if (take('[')) {
      if (take(']')) {
        return;
      }
      do {
        skip(depth + 1);
      } while (ok_ && take(','));
      expect(']');
    } else {
      const char* const begin = at_;
      while (at_ != end_ && (isOfNumber(*at_) || isLetter(*at_))) {
        ++at_;
      }
      if (at_ == begin) {
        fail();
      }
    }
  }

 private:
  static bool isOfNumber(char c) {
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' ||
        c == 'e' || c == 'E';
  }
  static bool isLetter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  }

  static double parsed(std::string_view written) {
    double value = -1;
    const char* const end = written.data() + written.size();
    const auto [rest, error] = std::from_chars(written.data(), end, value);
    return error == std::errc() && rest == end && value >= 0 ? value : -1;
  }

  void skipSpace() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) {
      ++at_;
    }
  }

  void fail() {
    ok_ = false;
    at_ = end_;
  }

  const char* at_;
  const char* const end_;
  bool ok_ = true;
};

bool readHeaderField(Cursor& in, std::string_view key, Header& header) {
  if (key == "id") {
    header.id = in.text();
  } else if (key == "comm_name") {
    header.name = in.text();
  } else if (key == "rank") {
    header.rank = in.integer();
  } else if (key == "n_ranks") {
    header.ranks = in.integer();
  } else if (key == "nnodes") {
    header.nodes = in.integer();
  } else {
    return false;
  }
  return true;
}

bool readMetadataField(Cursor& in, std::string_view key, Metadata& metadata) {
  if (key == "inspector_output_format_version") {
    metadata.version = in.text();
  } else if (key == "hostname") {
    metadata.host = in.text();
  } else if (key == "pid") {
    metadata.pid = in.integer();
  } else if (key == "dump_timestamp_us") {
    metadata.dumpTimestampUs = in.integer();
  } else {
    return false;
  }
  return true;
}

// coll_perf and p2p_perf differ only in the prefix of their keys.
void readOperationField(Cursor& in, std::string_view key, Operation& out) {
  if (key == "coll" || key == "p2p") {
    out.kind = in.text();
    return;
  }
  if (key == "graphCaptured" || key == "graph_captured") {
    out.graphCaptured = in.boolean();
    return;
  }
  const bool isOwn = key.starts_with("coll_") || key.starts_with("p2p_");
  const std::string_view name = isOwn ? key.substr(key.find('_') + 1) : "";
  if (name == "sn") {
    out.number = in.integer();
  } else if (name == "msg_size_bytes") {
    out.sizeBytes = in.integer();
  } else if (name == "exec_time_us") {
    out.timeUs = in.number();
  } else if (name == "peer") {
    out.peer = in.integer();
  } else if (name == "timing_source") {
    out.timingSource = in.text();
  } else if (name == "algo") {
    out.algorithm = in.text();
  } else if (name == "proto") {
    out.protocol = in.text();
  } else {
    in.skip(1);
  }
}

void readDumpField(Cursor& in, std::string_view key, DumpStats& dump) {
  if (key == "coll_records") {
    dump.collectiveRecords = in.integer();
  } else if (key == "coll_dropped_total") {
    dump.collectivesDropped = in.integer();
  } else if (key == "p2p_dropped_total") {
    dump.messagesDropped = in.integer();
  } else {
    in.skip(1);
  }
}

template <class Part, class Read>
void readPart(Cursor& in, std::optional<Part>& part, Read read) {
  if (!part) {
    part.emplace();
  }
  in.object([&](std::string_view key) { read(key, *part); });
}

} // namespace

std::optional<LogLine> parseLine(std::string_view text) {
  Cursor in(text);
  LogLine line;
  Header flatHeader;
  Metadata flatMetadata;
  bool hasFlatHeader = false;
  bool hasFlatMetadata = false;
  const auto skipUnless = [&in](bool isRead) {
    if (!isRead) {
      in.skip(1);
    }
  };
  in.object([&](std::string_view key) {
    if (key == "header") {
      readPart(in, line.header, [&](std::string_view name, Header& header) {
        skipUnless(readHeaderField(in, name, header));
      });
    } else if (key == "metadata") {
      readPart(in, line.metadata, [&](std::string_view name, Metadata& data) {
        skipUnless(readMetadataField(in, name, data));
      });
    } else if (key == "coll_perf" || key == "p2p_perf") {
      readPart(in, line.operation, [&](std::string_view name, Operation& op) {
        readOperationField(in, name, op);
      });
      line.operation->isMessage = key == "p2p_perf";
    } else if (key == "dump_stats") {
      readPart(in, line.dump, [&](std::string_view name, DumpStats& dump) {
        readDumpField(in, name, dump);
      });
    } else if (readHeaderField(in, key, flatHeader)) {
      hasFlatHeader = true;
    } else if (readMetadataField(in, key, flatMetadata)) {
      hasFlatMetadata = true;
    } else {
      line.isProxyTrace = line.isProxyTrace || key == "proxy_trace";
      in.skip(1);
    }
  });
  if (!in.ok() || !in.atEnd()) {
    return std::nullopt;
  }
  if (hasFlatHeader && !line.header) {
    line.header = flatHeader;
  }
  if (hasFlatMetadata && !line.metadata) {
    line.metadata = flatMetadata;
  }
  return line;
}

} // namespace commprof::inspector
