#include "inspector/sequence.h"

#include <algorithm>
#include <map>
#include <utility>

namespace commprof::inspector {

namespace {

constexpr size_t kFewestTurns = 3;
constexpr double kLeastPart = 0.8;

// True if the sequence numbers rise by one from call to call.
bool hasAllNumbers(const Stream& stream) {
  const auto& records = stream.records;
  return std::adjacent_find(
             records.begin(), records.end(), [](const auto& a, const auto& b) {
               return b.number != a.number + uint64_t(1);
             }) == records.end();
}

// Returns, for each prefix of `text`, the length of its longest border. The
// index is the prefix's length. A border is a shorter prefix that is also a
// suffix (Knuth, Morris and Pratt).
std::vector<uint32_t> borders(const std::vector<uint32_t>& text) {
  std::vector<uint32_t> longest(text.size() + 1, 0);
  uint32_t border = 0;
  for (uint32_t i = 1; i < text.size(); ++i) {
    while (border > 0 && text[i] != text[border]) {
      border = longest[border];
    }
    border += text[i] == text[border];
    longest[i + 1] = border;
  }
  return longest;
}

} // namespace

Sequence sequenceOf(const Communicator& member) {
  std::vector<const Stream*> streams;
  std::vector<const std::string*> kinds;
  streams.resize(member.kinds);
  kinds.resize(member.kinds);
  for (const auto& [kind, stream] : member.streams) {
    if (stream.peers.empty()) {
      if (!hasAllNumbers(stream)) {
        return {};
      }
      streams[stream.index] = &stream;
      kinds[stream.index] = &kind;
    }
  }
  std::map<std::pair<uint8_t, uint64_t>, uint32_t> tokens;
  std::vector<std::pair<uint8_t, uint64_t>> calls;
  std::vector<size_t> next(member.kinds, 0);
  for (uint8_t kind : member.order) {
    if (streams[kind] == nullptr ||
        next[kind] >= streams[kind]->records.size()) {
      return {}; // records were already taken while the log was followed
    }
    calls.emplace_back(kind, streams[kind]->records[next[kind]++].sizeBytes);
  }
  // The search begins at the end, because the log begins with the set-up, which
  // is not repeated.
  std::reverse(calls.begin(), calls.end());
  std::vector<uint32_t> text;
  for (const auto& call : calls) {
    text.push_back(tokens.emplace(call, uint32_t(tokens.size())).first->second);
  }
  const std::vector<uint32_t> longest = borders(text);
  for (size_t length = text.size();
       length > 0 && double(length) >= kLeastPart * double(text.size());
       --length) {
    const size_t period = length - longest[length];
    if (length >= kFewestTurns * period) {
      Sequence found;
      found.turns = length / period;
      found.before = text.size() - found.turns * period;
      for (size_t i = period; i-- > 0;) {
        found.calls.push_back({*kinds[calls[i].first], calls[i].second});
      }
      return found;
    }
  }
  return {};
}

} // namespace commprof::inspector
