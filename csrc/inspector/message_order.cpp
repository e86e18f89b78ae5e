#include "inspector/message_order.h"

#include <algorithm>
#include <limits>

namespace commprof::inspector {

namespace {

constexpr size_t kLongestPeriod = 4096;
// Each place of the repeated sequence must have at least this many records.
constexpr uint32_t kFewestRecords = 3;
// If more repetitions than this are missing before the first record, the order
// is not found. The missing messages may belong to the set-up, which repeats
// nothing.
constexpr size_t kMostBefore = 3;
// Largest ratio of all messages to recorded messages. If more messages are
// lost, the order is not found.
constexpr size_t kMostLost = 4;

// Returns the shortest repeated sequence of messages; empty if there is none.
std::vector<Message> repeated(
    std::span<const Message> before,
    std::span<const Message> recorded) {
  std::vector<Message> sequence;
  std::vector<uint32_t> times;
  const size_t longest = std::min(
      kLongestPeriod,
      (before.size() + recorded.size()) / size_t(kFewestRecords));
  for (size_t period = 1; period <= longest; ++period) {
    sequence.assign(period, {});
    times.assign(period, 0);
    const auto fits = [&](const Message& message) {
      const size_t place = message.number % period;
      Message& known = sequence[place];
      if (times[place]++ == 0) {
        known = {0, message.peer, message.isSend, nullptr};
      }
      return known.peer == message.peer && known.isSend == message.isSend;
    };
    if (std::all_of(before.begin(), before.end(), fits) &&
        std::all_of(recorded.begin(), recorded.end(), fits) &&
        *std::min_element(times.begin(), times.end()) >= kFewestRecords) {
      return sequence;
    }
  }
  return {};
}

} // namespace

uint32_t leastNumber(const Stream* stream) {
  uint32_t least = std::numeric_limits<uint32_t>::max();
  for (size_t i = 0; stream != nullptr && i < stream->records.size(); ++i) {
    least = std::min(least, stream->records[i].number);
  }
  return least;
}

std::vector<Message> byNumber(const Stream* sends, const Stream* receives) {
  std::vector<Message> result;
  for (const Stream* stream : {sends, receives}) {
    for (size_t i = 0; stream != nullptr && i < stream->records.size(); ++i) {
      const Record& record = stream->records[i];
      const bool isSend = stream == sends;
      result.push_back({record.number, stream->peers[i], isSend, &record});
    }
  }
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) {
    return a.number < b.number;
  });
  return result;
}

MessageOrder messagesInOrder(
    std::span<const Message> recorded,
    uint32_t first,
    std::span<const Message> before) {
  if (recorded.empty() || recorded.front().number < first) {
    return {};
  }
  const size_t count = recorded.back().number - first + size_t(1);
  if (count > kMostLost * recorded.size()) {
    return {};
  }
  std::vector<Message> sequence;
  if (count != recorded.size()) {
    sequence = repeated(before, recorded);
    if (before.empty() &&
        recorded.front().number - first > kMostBefore * sequence.size()) {
      return {};
    }
  }
  MessageOrder order{{}, sequence.size()};
  order.messages.reserve(count);
  uint64_t number = first;
  for (const Message& message : recorded) {
    for (; number < message.number; ++number) {
      if (sequence.empty()) { // a number comes twice, or nothing repeats
        return {};
      }
      order.messages.push_back(sequence[number % sequence.size()]);
      order.messages.back().number = uint32_t(number);
    }
    if (number != message.number) {
      return {};
    }
    order.messages.push_back(message);
    ++number;
  }
  return order;
}

} // namespace commprof::inspector
