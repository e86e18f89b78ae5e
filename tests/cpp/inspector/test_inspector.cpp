#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "inspector/follow.h"
#include "inspector/log_file.h"
#include "inspector/message_order.h"
#include "inspector/sequence.h"
#include "inspector/waits.h"

using namespace commprof::inspector;

namespace {

std::string line(int rank, int number, const std::string& timeUs) {
  return R"({"header": {"id": "0xa", "rank": )" + std::to_string(rank) +
      R"(, "n_ranks": 3, "nnodes": 1}, "metadata": {"hostname": "h", "pid": 7},)"
      R"( "coll_perf": {"coll": "AllReduce", "coll_sn": )" +
      std::to_string(number) + R"(, "coll_msg_size_bytes": 4096,)" +
      R"( "coll_exec_time_us": )" + timeUs +
      R"(, "coll_timing_source": "kernel_gpu", "event_trace_ts":)"
      R"( {"kernel_events": [{"channel_id": 0}, {}], "x": null}}})";
}

void linesAreRead() {
  // The result of parseLine() points into the text.
  const std::string text = line(1, 5, "12.5");
  const auto plain = parseLine(text);
  CHECK(plain && plain->header && plain->operation);
  CHECK(plain->header->rank == 1 && plain->header->ranks == 3);
  CHECK(plain->operation->number == 5 && plain->operation->timeUs == 12.5);
  CHECK(plain->metadata->host == "h" && plain->metadata->pid == 7);
  CHECK(!parseLine("").has_value());
  CHECK(!parseLine("{").has_value());
  CHECK(!parseLine(R"({"a": "\)").has_value());
  CHECK(!parseLine(R"({"a": 1} x)").has_value());
  CHECK(!parseLine(line(1, 5, "1").substr(0, 120)).has_value());
  CHECK(!parseLine(std::string(100000, '{')).has_value());
  CHECK(!parseLine("{\"a\": " + std::string(100000, '[')).has_value());
  CHECK(parseLine(R"({"a": [], "b": [1, "x\"]"], "c": {}})").has_value());
  const std::string collective = line(0, 1, "5");
  std::string send = collective;
  send.replace(send.find("AllReduce"), 9, "Send");
  std::string message = collective;
  message.replace(message.find("coll_perf"), 9, "p2p_perf");
  LogFile file("x");
  file.feed(collective + "\n" + send + "\n" + message + "\n");
  CHECK(file.operations() == 1 && file.damagedLines() == 2);
  CHECK(file.communicators().at(0)->streams.count("Send") == 0);
}

void piecesOfAnySizeGiveTheSame() {
  std::string text;
  for (int number = 0; number < 50; ++number) {
    text += line(0, number, std::to_string(number + 1)) + "\r\n";
  }
  // Some editors write a byte order mark.
  text.insert(0, "\xEF\xBB\xBF");
  text += line(0, 50, "51");
  for (size_t piece : {1, 7, 300, 100000}) {
    LogFile file("x");
    for (size_t at = 0; at < text.size(); at += piece) {
      file.feed(std::string_view(text).substr(at, piece));
    }
    file.finish();
    CHECK(file.operations() == 51 && file.damagedLines() == 0);
    const auto& records =
        file.communicators().at(0)->streams.at("AllReduce").records;
    CHECK(records.size() == 51 && records[50].timeUs == 51.5);
  }
}

Stream streamOf(const std::vector<Record>& records) {
  Stream stream;
  stream.records = records;
  return stream;
}

std::string dumped(int dumpUs, int number) {
  std::string text = line(0, number, "5") + "\n";
  const std::string before = R"("pid": 7)";
  text.insert(
      text.find(before) + before.size(),
      R"(, "dump_timestamp_us": )" + std::to_string(dumpUs));
  return text;
}

void logsThatGrowAreJoined() {
  LogFile early("early");
  LogFile late("late");
  LogFile copy("copy");
  std::vector<Communicator*> logs;
  const auto add = [&](LogFile& file, const std::string& text) {
    file.feed(text);
    logs.push_back(file.communicators().at(0).get());
  };
  const auto taken = [&] {
    Communicator* const member[] = {joinLogs(logs).front()};
    const uint8_t followed[] = {1};
    return takeCollectives(member, followed, "AllReduce", 1, 1).calls;
  };
  add(early, dumped(1, 1) + dumped(1, 2));
  CHECK(taken() == 2);
  add(copy, dumped(1, 1) + dumped(1, 2));
  CHECK(taken() == 0);
  copy.feed(dumped(1, 3));
  add(late, dumped(1, 3) + dumped(2, 4));
  CHECK(taken() == 2);
  copy.feed(dumped(4, 9));
  late.feed(dumped(3, 5));
  CHECK(joinLogs(logs).size() == 2);
  CHECK(taken() == 1);
  CHECK(logs[1]->streams.at("AllReduce").records.empty());
}

void shortestTimeIsTheTransfer() {
  // Rank 1 comes 30 us after rank 0 and 20 us after rank 2, in both calls.
  const Stream first = streamOf({{8, 0, 50}, {8, 1, 70}});
  const Stream second = streamOf({{8, 0, 20}, {8, 1, 40}});
  const Stream third = streamOf({{8, 0, 40}, {8, 1, 60}});
  const Stream* const all[] = {&first, &second, &third};
  const Waits waits = splitCollectives(all, 3, 2);
  CHECK(waits.calls == 2 && waits.completeCalls == 2);
  CHECK((waits.causedUs == std::vector<double>{0, 50, 0, 0, 50, 0}));
  CHECK((waits.waitedUs == std::vector<double>{30, 0, 20, 30, 0, 20}));
  CHECK((waits.waitersUs == std::vector<double>{0, 0, 0, 60, 0, 40, 0, 0, 0}));
  CHECK((waits.sizes.at(0).transfersUs == std::vector<float>{20, 40}));
}

void equalTimesShareTheBlame() {
  const Stream first = streamOf({{8, 0, 50}});
  const Stream second = streamOf({{8, 0, 20}});
  const Stream third = streamOf({{8, 0, 20}});
  const Stream* const all[] = {&first, &second, &third};
  const Waits waits = splitCollectives(all, 3, 1);
  CHECK((waits.causedUs == std::vector<double>{0, 15, 15}));
}

void noStreamsAreNoCalls() {
  const Stream none;
  const Stream* const all[] = {&none, &none};
  CHECK(splitCollectives(all, 2, 4).calls == 0);
  const int64_t members[] = {0};
  const Stream* const missing[] = {nullptr};
  CHECK(splitMessages(members, missing, missing, 4).calls == 0);
  CHECK(unsplit(all).sizes.empty());
}

void lostTimesFollowTheOthers() {
  Stream ranks[4];
  for (uint32_t n = 0; n < 60; ++n) {
    const float wait = n % 3 == 0 ? 500 : 20 + float(n % 7);
    for (size_t rank = 0; rank < 4; ++rank) {
      const bool isLost =
          (rank == 1 && n % 5 == 2) || (rank == 2 && n % 4 == 1);
      if (!isLost) {
        ranks[rank].records.push_back({8, n, rank == 2 ? 100 : 100 + wait});
      }
    }
  }
  const Stream* const all[] = {&ranks[0], &ranks[1], &ranks[2], &ranks[3]};
  const Waits waits = splitCollectives(all, 4, 1);
  const double whole = waits.wholeTimeUs[0];
  CHECK(std::abs(waits.wholeTimeUs[1] - whole) < 0.01 * whole);
  CHECK(std::abs(waits.wholeTimeUs[2] - 60 * 100) < 0.01 * 60 * 100);
  CHECK(waits.unattributedUs < waits.causedUs[2] / 20);
}

Stream messagesOf(const std::vector<uint32_t>& numbers, int32_t peer) {
  Stream stream;
  for (uint32_t number : numbers) {
    stream.records.push_back({8, number, 50});
    stream.peers.push_back(peer);
  }
  return stream;
}

void lostMessagesAreToldByTheirNumber() {
  // Each step has one send to rank 1 and two recvs from rank 3. The records of
  // messages 5 and 9 are lost.
  const Stream sends = messagesOf({1, 4, 7, 10, 13}, 1);
  const Stream receives = messagesOf({2, 3, 6, 8, 11, 12, 14, 15}, 3);
  const auto order = [](const Stream& sent, const Stream* got, uint32_t first) {
    return messagesInOrder(byNumber(&sent, got), first);
  };
  const MessageOrder found = order(sends, &receives, 1);
  CHECK(found.messages.size() == 15 && found.turn == 3);
  const Message& lost = found.messages.at(4);
  CHECK(lost.record == nullptr && lost.peer == 3 && lost.number == 5);
  CHECK(!lost.isSend && found.messages.at(9).isSend);
  CHECK(found.messages.at(9).record == &sends.records[3]);
  // Messages before the first record are inferred only if they are few.
  CHECK(order(sends, &receives, 0).messages.size() == 16);
  const Stream late = messagesOf({4000000000, 4000000002}, 1);
  CHECK(order(late, nullptr, 1).messages.empty());
  // Without a repeated sequence, a lost record or a double number leaves the
  // order unknown.
  const Stream some = messagesOf({1, 2, 5}, 1);
  Stream others = messagesOf({3, 4, 6}, 2);
  CHECK(order(some, &others, 1).messages.size() == 6);
  CHECK(order(some, &others, 1).turn == 0);
  others.records.pop_back();
  others.records.push_back({8, 7, 50});
  CHECK(order(some, &others, 1).messages.empty());
  others.records.back().number = 5;
  CHECK(order(some, &others, 1).messages.empty());
  const Stream few = messagesOf({16, 19}, 1);
  const Stream after = messagesOf({17, 20, 21}, 3);
  CHECK(order(few, &after, 16).messages.empty());
  const std::vector<Message> before = byNumber(&sends, &receives);
  CHECK(
      messagesInOrder(byNumber(&few, &after), 16, before).messages.size() == 6);
}

Communicator memberOf(int64_t rank) {
  Communicator member;
  member.rank = rank;
  member.ranks = 2;
  return member;
}

void callsAreTakenOnceAllWroteThem() {
  Communicator first = memberOf(0);
  Communicator second = memberOf(1);
  first.streams["AllReduce"].records = {{8, 0, 50}, {8, 1, 70}, {8, 2, 90}};
  second.streams["AllReduce"].records = {{8, 0, 20}, {8, 1, 40}};
  Communicator* const both[] = {&first, &second};
  const uint8_t followed[] = {1, 1};
  Waits waits = takeCollectives(both, followed, "AllReduce", 2, 1);
  CHECK(waits.completeCalls == 2 && waits.causedUs[1] == 60);
  CHECK(first.streams["AllReduce"].records.size() == 1);
  CHECK(takeCollectives(both, followed, "AllReduce", 2, 1).calls == 0);
  // The second member's log has ended, so a call that only the first member
  // wrote is taken.
  const uint8_t firstOnly[] = {1, 0};
  waits = takeCollectives(both, firstOnly, "AllReduce", 2, 1);
  CHECK(waits.calls == 1 && waits.lostRecords == 1);
  // Replays of a CUDA graph repeat the numbers of their calls.
  first.streams["AllReduce"].records = {{8, 7, 5}, {8, 8, 6}, {8, 7, 7}};
  second.streams["AllReduce"].records = {{8, 7, 9}, {8, 8, 6}};
  waits = takeCollectives(both, followed, "AllReduce", 2, 1);
  CHECK(waits.completeCalls == 2 && waits.causedUs[0] == 4);
}

void messagesAreTakenInTheirOrder() {
  Communicator first = memberOf(0);
  Communicator second = memberOf(1);
  Communicator* const both[] = {&first, &second};
  Stream& sends = first.streams["Send"];
  Stream& receives = second.streams["Recv"];
  sends.records = {{8, 1, 50}, {8, 2, 50}, {8, 4, 50}};
  sends.peers = {1, 1, 1};
  receives.records = {{8, 1, 80}};
  receives.peers = {0};
  Waits waits = takeMessages(both, 1, false);
  CHECK(waits.calls == 1 && waits.causedUs[0] == 30);
  CHECK(sends.records.size() == 1);
  receives.records = {{8, 2, 60}, {8, 3, 60}};
  receives.peers = {0, 0};
  waits = takeMessages(both, 1, false);
  CHECK(waits.calls == 1 && waits.causedUs[0] == 10);
  sends.records.push_back({8, 3, 40});
  sends.peers.push_back(1);
  waits = takeMessages(both, 1, false);
  CHECK(waits.calls == 1 && waits.causedUs[0] == 20);
  CHECK(sends.records.empty() && waits.unmatchedRecords == 0);
}

// Of three messages, rank 0 sends two and receives the third. Rank 0 does not
// write the messages in `lost`.
void writeMessages(
    Communicator& first,
    Communicator& second,
    uint32_t begin,
    uint32_t end,
    const std::set<uint32_t>& lost) {
  for (uint32_t number = begin; number < end; ++number) {
    const bool isSend = number % 3 != 0;
    const auto write = [&](Communicator& member, const char* kind, float us) {
      member.streams[kind].records.push_back({8, number, us});
      member.streams[kind].peers.push_back(int32_t(1 - member.rank));
    };
    write(second, isSend ? "Recv" : "Send", number == 8 ? 90 : 50);
    if (lost.count(number) == 0) {
      write(first, isSend ? "Send" : "Recv", 50);
    }
  }
}

void messagesThatAreLostAreTakenToo() {
  Communicator first = memberOf(0);
  Communicator second = memberOf(1);
  Communicator* const both[] = {&first, &second};
  writeMessages(first, second, 1, 61, {5, 6});
  Waits waits = takeMessages(both, 1, false);
  CHECK(waits.calls == 60 && waits.completeCalls == 58);
  CHECK(waits.lostRecords == 2 && waits.causedUs[0] == 40);
  first.streams["Recv"] = messagesOf({6}, 1);
  CHECK(takeMessages(both, 1, false).unmatchedRecords == 1);
  // A missing message counts as lost once 32 later messages have been written.
  writeMessages(first, second, 61, 81, {62});
  CHECK(takeMessages(both, 1, false).calls == 1);
  first.streams["Send"].records.push_back({8, 62, 50});
  first.streams["Send"].peers.push_back(1);
  waits = takeMessages(both, 1, false);
  CHECK(waits.calls == 19 && waits.completeCalls == 19);
  writeMessages(first, second, 81, 101, {82});
  CHECK(takeMessages(both, 1, false).calls == 1);
  writeMessages(first, second, 101, 121, {});
  waits = takeMessages(both, 1, false);
  CHECK(waits.calls == 39 && waits.lostRecords == 1);
  // Number 121 comes twice, so messages cannot be matched from number 121 on.
  writeMessages(first, second, 121, 122, {});
  writeMessages(first, second, 121, 122, {});
  CHECK(takeMessages(both, 1, false).unmatchedRecords == 4);
  writeMessages(first, second, 122, 123, {});
  CHECK(takeMessages(both, 1, false).unmatchedRecords == 2);
  writeMessages(first, second, 82, 83, {});
  writeMessages(first, second, 123, 124, {});
  CHECK(takeMessages(both, 1, false).unmatchedRecords == 4);
}

void repeatedCallsAreFound() {
  LogFile file("x");
  int number = 0;
  for (int step = 0; step < 6; ++step) {
    for (int bytes : {step == 0 ? 9999 : 4096, 4096, 8192}) {
      std::string text = line(0, number++, "5");
      text.replace(text.find("4096"), 4, std::to_string(bytes));
      file.feed(text + "\n");
    }
  }
  Communicator& member = *file.communicators().at(0);
  Sequence found = sequenceOf(member);
  CHECK(found.calls.size() == 3 && found.turns == 5 && found.before == 3);
  CHECK(found.calls[2].sizeBytes == 8192 && found.calls[2].kind == "AllReduce");
  member.streams.begin()->second.records.erase(
      member.streams.begin()->second.records.begin() + 5);
  CHECK(sequenceOf(member).calls.empty());
  CHECK(sequenceOf(Communicator()).calls.empty());
}

void messagesWithoutAnotherSideAreDropped() {
  Communicator first = memberOf(0);
  Communicator second = memberOf(1);
  Communicator* const both[] = {&first, &second};
  writeMessages(first, second, 1, 61, {});
  Waits waits = takeMessages({both, 1}, 1, false);
  CHECK(waits.calls == 0 && waits.unmatchedRecords == 60);
  CHECK(first.messages.sent.at(1).messages.empty());
  CHECK(first.messages.received.at(1).messages.empty());
  Communicator written = second;
  for (auto& [kind, stream] : second.streams) {
    stream.records.resize(stream.records.size() / 2);
    stream.peers.resize(stream.peers.size() / 2);
  }
  CHECK(takeMessages(both, 1, false).unmatchedRecords == 30);
  for (auto& [kind, stream] : second.streams) {
    const Stream& whole = written.streams.at(kind);
    const auto half = std::ptrdiff_t(whole.records.size() / 2);
    stream.records.assign(whole.records.begin() + half, whole.records.end());
    stream.peers.assign(whole.peers.begin() + half, whole.peers.end());
  }
  writeMessages(first, second, 61, 70, {});
  waits = takeMessages(both, 1, false);
  CHECK(waits.calls == 9 && waits.completeCalls == 9);
  CHECK(waits.unmatchedRecords == 30);
  Communicator other = memberOf(1);
  writeMessages(first, other, 70, 300070, {});
  waits = takeMessages(both, 1, false);
  CHECK(waits.calls == 0 && waits.unmatchedRecords == 300000 - 2 * 65536);
  CHECK(first.messages.sent.at(1).messages.size() == 65536);
}

} // namespace

int main() {
  messagesWithoutAnotherSideAreDropped();
  repeatedCallsAreFound();
  callsAreTakenOnceAllWroteThem();
  messagesAreTakenInTheirOrder();
  messagesThatAreLostAreTakenToo();
  linesAreRead();
  piecesOfAnySizeGiveTheSame();
  shortestTimeIsTheTransfer();
  lostTimesFollowTheOthers();
  lostMessagesAreToldByTheirNumber();
  equalTimesShareTheBlame();
  noStreamsAreNoCalls();
  logsThatGrowAreJoined();
  return check::report();
}
