// The events of a Chrome trace that a profiler wrote, as columns.
//
// The scanner knows the structure of such a trace, but no names of events: the
// reader decides, once for each name, what an event means. The scan stops in
// front of an event with an unusual structure, and leaves it to the reader.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace commprof::recordings {

// Gives texts indices, in the order in which they are first seen.
class Texts {
 public:
  int64_t number(std::string_view text);

  const std::string& operator[](size_t number) const {
    return texts_[number];
  }

  size_t size() const {
    return texts_.size();
  }

 private:
  std::deque<std::string> texts_; // a deque, so that texts keep their addresses
  std::unordered_map<std::string_view, int64_t> numbers_;
};

// One row for each complete event ("ph": "X") that is in one of the requested
// categories and has a name, a begin and a length. Times are on the trace's own
// clock.
struct EventColumns {
  std::vector<int64_t> category; // index in the list of categories
  // Index in names(). The name of a copy between memories ends with the value
  // of its argument "copy kind", if it has one.
  std::vector<int64_t> name;
  std::vector<int64_t> startNs;
  std::vector<int64_t> endNs;
  std::vector<int64_t> thread; // -1 if the thread is not a whole number
  // -1 if the value is not a whole number; the same in `device` and `stream`.
  std::vector<int64_t> correlation;
  std::vector<int64_t> device;
  std::vector<int64_t> stream; // `tid` if the arguments have no stream
  std::vector<int64_t> isCollective; // 1 if the arguments name a collective
  // Position and length of the event's arguments.
  std::vector<std::pair<size_t, size_t>> arguments;

  void clear();
};

// Scans the texts of traces, one after the other, in one thread. A name or
// value has the same index in all texts.
class EventScanner {
 public:
  // `kept`: keys of an event's arguments whose values combinations() holds.
  // `integers`: keys whose values arguments() returns as columns. `collective`
  // is the key that shows that an event is part of a collective.
  EventScanner(
      std::vector<std::string> categories,
      std::vector<std::string> kept,
      std::vector<std::string> integers,
      std::string collective);

  // Replaces events() by the events of the text from `at` on; spaces, commas
  // and colons may separate them. Returns the place at which the scan stopped:
  // in front of an event that is cut off or unusual, or of anything that is not
  // an event.
  size_t scan(std::string_view text, size_t at);

  const EventColumns& events() const {
    return events_;
  }
  // Names as they are written, with quotes and escapes.
  const Texts& names() const {
    return names_;
  }
  // Values of arguments as they are written.
  const Texts& values() const {
    return values_;
  }
  // The processes of the last scan's events: index of the category, and the
  // process as it is written. At most kMostProcesses.
  const std::vector<std::pair<int64_t, std::string>>& processes() const {
    return processes_;
  }
  static constexpr size_t kMostProcesses = 256;

  // True if the last scan stopped at an event that is complete but unusual.
  bool isUnusual() const {
    return isUnusual_;
  }

  struct Arguments {
    // For each row, the index of its values in combinations().
    std::vector<int64_t> combination;
    // For each row and each key of `integers`, the value; kAbsent if there is
    // no value, kNoInteger if it is no whole number from 0 to 2^62 - 1,
    // kUndecided if only Python can tell.
    std::vector<int64_t> integers;
  };
  static constexpr int64_t kAbsent = -1, kNoInteger = -2, kUndecided = -3;

  Arguments arguments(std::string_view text, const std::vector<int64_t>& rows);

  // The arguments of a row as they are written.
  std::string_view argumentsText(std::string_view text, size_t row) const;

  // The different combinations of values in the rows: for each kept key, the
  // value's index or -1. A combination has the same index in all texts.
  const std::vector<std::vector<int64_t>>& combinations() const {
    return combinations_;
  }

 private:
  enum class Outcome { kTaken, kCutOff, kUnusual };

  struct Tokens;

  Outcome scanEvent(std::string_view text, size_t& at);
  bool addRow(const Tokens& tokens, std::string_view text);
  int64_t categoryOf(std::string_view name);
  void noteProcess(int64_t category, std::string_view process);

  const std::vector<std::string> categories_;
  const std::vector<std::string> kept_;
  const std::vector<std::string> integers_;
  const std::string collective_;
  EventColumns events_;
  Texts names_;
  Texts values_;
  std::vector<std::vector<int64_t>> combinations_;
  std::map<std::vector<int64_t>, int64_t> numberOf_;
  size_t lastCategory_ = 0;
  std::vector<std::pair<int64_t, std::string>> processes_;
  std::vector<std::string> lastProcess_; // by category
  bool isUnusual_ = false;
};

} // namespace commprof::recordings
