#include "inspector/message_order.h"

#include <algorithm>

namespace commprof::inspector {

namespace {

constexpr size_t kLongestPeriod = 4096;
constexpr uint32_t kFewestRecords = 3; // of each place of the sequence
// Times the sequence: what may be lost before the first record. More may be of
// the set-up, which repeats nothing.
constexpr size_t kMostBefore = 3;
// Numbers per record.
constexpr size_t kMostLost = 4;

struct Numbered {
  uint32_t number;
  Message message;
};

std::vector<Numbered> numbered(const Stream* sends, const Stream* receives) {
  std::vector<Numbered> result;
  for (const Stream* stream : {sends, receives}) {
    for (size_t i = 0; stream != nullptr && i < stream->records.size(); ++i) {
      const Record& record = stream->records[i];
      const bool isSend = stream == sends;
      result.push_back({record.number, {&record, stream->peers[i], isSend}});
    }
  }
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) {
    return a.number < b.number;
  });
  return result;
}

// The shortest sequence that numbers repeat; empty if there is none.
std::vector<Message> repeated(const std::vector<Numbered>& recorded) {
  std::vector<Message> sequence;
  std::vector<uint32_t> times;
  const size_t longest =
      std::min(kLongestPeriod, recorded.size() / size_t(kFewestRecords));
  for (size_t period = 1; period <= longest; ++period) {
    sequence.assign(period, {});
    times.assign(period, 0);
    const bool isSame =
        std::all_of(recorded.begin(), recorded.end(), [&](const auto& one) {
          const size_t place = one.number % period;
          Message& known = sequence[place];
          if (times[place]++ == 0) {
            known = {nullptr, one.message.peer, one.message.isSend};
          }
          return known.peer == one.message.peer &&
              known.isSend == one.message.isSend;
        });
    if (isSame &&
        *std::min_element(times.begin(), times.end()) >= kFewestRecords) {
      return sequence;
    }
  }
  return {};
}

} // namespace

std::vector<Message> messagesInOrder(
    const Stream* sends,
    const Stream* receives,
    uint32_t first) {
  const std::vector<Numbered> recorded = numbered(sends, receives);
  std::vector<Message> messages;
  if (recorded.empty() || recorded.front().number < first) {
    return messages;
  }
  const size_t count = recorded.back().number - first + size_t(1);
  if (count > kMostLost * recorded.size()) {
    return messages;
  }
  std::vector<Message> sequence;
  if (count != recorded.size()) {
    sequence = repeated(recorded);
    if (recorded.front().number - first > kMostBefore * sequence.size()) {
      return messages;
    }
  }
  messages.reserve(count);
  uint64_t number = first;
  for (const Numbered& one : recorded) {
    for (; number < one.number; ++number) {
      if (sequence.empty()) { // a number comes twice
        return {};
      }
      messages.push_back(sequence[number % sequence.size()]);
    }
    if (number != one.number) {
      return {};
    }
    messages.push_back(one.message);
    ++number;
  }
  return messages;
}

} // namespace commprof::inspector
