#include "always_on/summary/summary.h"

#include <algorithm>
#include <map>
#include <random>

#include "check.h"

using namespace commprof;

namespace {

constexpr size_t kLimit = 384 << 10;
ArrivalExchange no_groups;

Record record(Kind kind, uint64_t begin_ns, uint64_t op_id, uint64_t end_ns) {
  Record made;
  made.kind = kind;
  made.timestamp_ns = begin_ns;
  made.op_id = op_id;
  made.value = end_ns;
  made.thread = 1;
  return made;
}

Record issue(uint64_t op_id, uint64_t at_ns, uint64_t bytes, Op op) {
  Record made = record(Kind::kIssue, at_ns, op_id, 0);
  made.op = op;
  made.group = 1;
  made.bytes_in = bytes;
  return made;
}

Record end(uint64_t op_id, uint64_t at_ns, uint32_t flags = 0) {
  Record made = record(Kind::kEnd, at_ns, op_id, 0);
  made.flags = flags;
  return made;
}

Record wait(uint64_t op_id, uint64_t begin_ns, uint64_t end_ns, Op op) {
  Record made = record(Kind::kWait, begin_ns, op_id, end_ns);
  made.op = op;
  return made;
}

Record step(uint64_t number, uint64_t at_ns, bool ends) {
  Record made = record(Kind::kStep, at_ns, number, 0);
  made.aux = ends ? 1 : 0;
  return made;
}

Record phase(Phase phase, uint64_t begin_ns, uint64_t end_ns) {
  Record made = record(Kind::kPhase, begin_ns, 0, end_ns);
  made.aux = uint32_t(phase);
  return made;
}

void fold(Summary& summary, const std::vector<Record>& records) {
  summary.fold(records.data(), records.size());
}

std::string text(Summary& summary, size_t limit = kLimit) {
  return summary.json({1, 99, Mode::kAlwaysOn, 0}, limit);
}

bool holds(Summary& summary, const std::string& part) {
  return text(summary).find(part) != std::string::npos;
}

std::string histogram(const std::vector<uint64_t>& values) {
  Histogram made;
  for (const uint64_t value : values) {
    made.add(value);
  }
  std::string out;
  made.appendJson(out);
  return out;
}

std::string operation(const std::string& counters) {
  return "{\"op\":1,\"group\":1,\"size_class\":7," + counters;
}

void operationsAreJoinedInAnyOrder() {
  const Op op = Op::kAllReduce;
  std::vector<Record> records = {
      issue(5, 100, 64, op), end(5, 400), wait(5, 150, 450, op)};
  std::sort(records.begin(), records.end(), [](auto& a, auto& b) {
    return a.kind < b.kind;
  });
  do {
    Summary summary(1, no_groups);
    fold(summary, records);
    CHECK(holds(
        summary,
        operation("\"count\":1,\"bytes\":64,\"failed\":0,\"unfinished\":0,") +
            "\"duration\":" + histogram({300}) +
            ",\"wait\":" + histogram({300}) + ","));
    CHECK(holds(summary, "\"records\":3,\"dropped\":0,\"unmatched\":0,"));
  } while (std::next_permutation(
      records.begin(), records.end(), [](auto& a, auto& b) {
        return a.kind < b.kind;
      }));
}

void operationsWithoutAnEnd() {
  Summary summary(1, no_groups);
  const Op op = Op::kAllReduce;
  // An operation on a device without an end does not count as unfinished.
  Record device = issue(3, 100, 64, op);
  device.flags = kDeviceAsync;
  fold(
      summary,
      {issue(1, 100, 64, op),
       wait(1, 150, 1'600, op),
       issue(2, 100, 64, op),
       device,
       issue(4, 100, 64, op),
       end(4, 130, kFailed),
       end(9, 130)});
  CHECK(holds(summary, "\"count\":4,\"bytes\":256,\"failed\":1,"));
  CHECK(holds(summary, "\"unfinished\":0,\"duration\":" + histogram({30})));
  summary.settle();
  CHECK(holds(
      summary, "\"unfinished\":1,\"duration\":" + histogram({30, 1'500})));
  CHECK(holds(summary, "\"unmatched\":1,"));
}

void completionsFromDeviceEventsCount() {
  Summary summary(1, no_groups);
  Record device = issue(1, 100, 64, Op::kAllReduce);
  device.flags = kDeviceAsync;
  Record ready = device;
  ready.kind = Kind::kDeviceReady;
  ready.timestamp_ns = 110;
  fold(summary, {device, ready, end(1, 130, kDeviceTime)});
  device.op_id = ready.op_id = 2;
  fold(summary, {end(2, 150, kDeviceTime), ready, device});
  CHECK(holds(summary, "\"duration\":" + histogram({20, 40})));
}

void waitsOfTheHostCountBesideADeviceForItsOwnOperations() {
  Summary summary(1, no_groups);
  Record device = issue(1, 100, 64, Op::kAllReduce);
  device.flags = kDeviceAsync;
  Record ready = device;
  ready.kind = Kind::kDeviceReady;
  ready.timestamp_ns = 110;
  Record waited = wait(1, 120, 130, Op::kAllReduce);
  waited.kind = Kind::kDeviceWait;
  fold(
      summary,
      {device,
       ready,
       end(1, 130, kDeviceTime),
       waited,
       wait(1, 105, 5'000, Op::kAllReduce),
       issue(2, 200, 64, Op::kSend),
       wait(2, 300, 2'200, Op::kSend)});
  CHECK(holds(
      summary,
      "\"duration\":" + histogram({20}) + ",\"wait\":" + histogram({10})));
  CHECK(holds(
      summary,
      "\"unfinished\":0,\"duration\":" + histogram({2'000}) +
          ",\"wait\":" + histogram({1'900})));
}

void waitsOfTheHostBeforeTheIssueDoNotCountBesideADevice() {
  Record device = issue(1, 100, 64, Op::kAllReduce);
  device.flags = kDeviceAsync;
  Record ready = device;
  ready.kind = Kind::kDeviceReady;
  ready.timestamp_ns = 110;
  Record waited = wait(1, 120, 130, Op::kAllReduce);
  waited.kind = Kind::kDeviceWait;
  const Record on_host = wait(1, 105, 5'000, Op::kAllReduce);
  const std::string expected =
      "\"duration\":" + histogram({20}) + ",\"wait\":" + histogram({10});
  const Record ended = end(1, 130, kDeviceTime);
  for (const std::vector<Record>& records :
       {std::vector<Record>{ready, on_host, device, ended, waited},
        {ready, on_host, waited, device, ended},
        {ready, waited, on_host, device, ended}}) {
    Summary summary(1, no_groups);
    fold(summary, records);
    CHECK(holds(summary, expected));
  }
}

// gloo's reduce-scatter reports its completion only to the thread that waits.
void aWaitIsTheEndOfAnOperationWithoutAnother() {
  Summary summary(1, no_groups);
  const Op op = Op::kReduceScatterTensor;
  fold(
      summary,
      {wait(1, 150, 1'600, op),
       issue(1, 100, 64, op),
       wait(1, 1'700, 1'800, op)});
  summary.resolve(1'600 + WaitLedger::kPatienceNs - 1);
  CHECK(holds(summary, "\"unfinished\":0,\"duration\":" + histogram({})));
  summary.resolve(1'600 + WaitLedger::kPatienceNs);
  const std::string counted =
      "\"unfinished\":0,\"duration\":" + histogram({1'500}) +
      ",\"wait\":" + histogram({1'450, 100}) + ",";
  CHECK(holds(summary, counted));
  summary.settle();
  CHECK(holds(summary, counted));
}

// A wait of less than 1 us did not block, so the end of message 2 is unknown.
void pointToPointEndsWithItsWait() {
  Summary summary(1, no_groups);
  const Op op = Op::kSend;
  fold(summary, {issue(1, 100, 64, op), wait(1, 150, 1'180, op)});
  fold(summary, {issue(2, 2'000, 64, op), wait(2, 9'000, 9'999, op)});
  summary.settle();
  CHECK(holds(summary, "\"unfinished\":0,\"duration\":" + histogram({1'080})));
}

void openOperationsBeyondTheLimitAreUnfinished() {
  Summary summary(1, no_groups);
  for (uint64_t id = 1; id <= Summary::kMaxOpen + 3; ++id) {
    fold(summary, {issue(id, 100, 64, Op::kAllReduce)});
  }
  CHECK(holds(summary, "\"unfinished\":3,"));
  fold(summary, {end(2, 200)});
  CHECK(holds(summary, "\"unmatched\":1,"));
}

void stepTimeIsSplitByPhase() {
  Summary summary(1, no_groups);
  const Op op = Op::kAllReduce;
  Record begin = record(Kind::kFinalizeBegin, 25'000, 3, 7'000);
  Record done = record(Kind::kFinalizeEnd, 27'000, 3, 7'300);
  Record other_thread = wait(1, 22'000, 29'000, op);
  other_thread.thread = 2;
  fold(
      summary,
      {step(0, 10'000, false),
       wait(1, 11'000, 12'000, op),
       step(0, 20'000, true),
       phase(Phase::kData, 20'500, 21'500),
       wait(1, 22'000, 22'100, op),
       wait(1, 24'000, 24'500, op),
       begin,
       wait(1, 25'500, 25'700, op),
       done,
       phase(Phase::kBackward, 23'500, 27'500),
       other_thread,
       step(1, 30'000, true)});
  CHECK(holds(summary, "\"steps\":" + histogram({10'000})));
  // The waits of the thread last 100, 500 and 200 ns. The finalisation adds
  // 2,000 ns, less 300 ns of CPU time and the wait of 200 ns.
  CHECK(holds(summary, "\"exposed\":" + histogram({2'300})));
  CHECK(holds(
      summary,
      "\"phases\":[" + histogram({10'000 - 2'300 - 1'000 - 1'800}) + "," +
          histogram({1'000}) + "," + histogram({0}) + "," + histogram({1'800}) +
          "," + histogram({0}) + "]"));
}

// The times are those of test_waiting_over_the_bound_of_a_phase_is_shared_out.
// The first order of records is a thread's, and the second order is that of a
// device's stream.
void waitsAreSplitAcrossPhases() {
  const Op op = Op::kAllReduce;
  const std::vector<std::vector<Record>> orders = {
      {phase(Phase::kForward, 10, 30),
       wait(1, 25, 60, op),
       wait(1, 65, 75, op),
       phase(Phase::kBackward, 70, 90)},
      {wait(1, 25, 60, op),
       phase(Phase::kForward, 10, 30),
       phase(Phase::kBackward, 70, 90),
       wait(1, 65, 75, op)}};
  for (const std::vector<Record>& first : orders) {
    Summary summary(1, no_groups);
    fold(summary, {step(7, 0, true), step(8, 0, true)});
    fold(summary, first);
    fold(
        summary,
        {step(9, 100, true),
         phase(Phase::kOptimizer, 110, 120),
         phase(Phase::kData, 120, 130),
         wait(1, 115, 145, op),
         phase(Phase::kForward, 130, 150),
         step(10, 200, true)});
    CHECK(holds(summary, "\"exposed\":" + histogram({45, 30})));
    CHECK(holds(
        summary,
        "\"phases\":[" + histogram({25, 60}) + "," + histogram({0, 0}) + "," +
            histogram({15, 5}) + "," + histogram({15, 0}) + "," +
            histogram({0, 5}) + "]"));
  }
}

void aDevicesDataStreamIsNotItsComputeStream() {
  const auto on = [](uint64_t stream, Kind kind, Record made) {
    made.kind = kind;
    made.bytes_out = stream;
    return made;
  };
  const Op op = Op::kAllReduce;
  const Kind waits = Kind::kDeviceWait;
  const Kind phases = Kind::kDevicePhase;
  const Kind steps = Kind::kDeviceStep;
  Summary summary(1, no_groups);
  fold(
      summary,
      {on(0, waits, wait(1, 5, 6, op)),
       on(0, steps, step(0, 10, false)),
       on(9, phases, phase(Phase::kData, 20, 30)),
       on(0, steps, step(0, 1'000, true)),
       on(9, phases, phase(Phase::kData, 1'000, 1'100)),
       on(0, waits, wait(2, 1'200, 1'500, op)),
       on(0, phases, phase(Phase::kForward, 1'100, 1'900)),
       on(0, steps, step(1, 2'000, true))});
  CHECK(holds(summary, "\"exposed\":" + histogram({300})));
}

void pausesAreCountedByPhase() {
  Summary summary(1, no_groups);
  const auto pause = [](uint64_t begin_ns, uint64_t end_ns) {
    Record made = record(Kind::kPause, begin_ns, 0, end_ns);
    made.thread = 7;
    return made;
  };
  fold(
      summary,
      {step(0, 0, false),
       pause(100, 900),
       step(0, 1'000, true),
       pause(1'100, 1'150),
       pause(1'300, 1'500),
       pause(1'650, 1'800),
       pause(1'950, 2'050),
       phase(Phase::kData, 1'000, 1'200),
       issue(1, 1'390, 64, Op::kAllReduce),
       wait(1, 1'400, 1'600, Op::kAllReduce),
       phase(Phase::kForward, 1'200, 1'700)});
  CHECK(holds(summary, "\"paused\":[0,0,0,0,0]"));
  fold(summary, {step(1, 2'000, true)});
  CHECK(holds(summary, "\"paused\":[150,50,150,0,0]"));
  CHECK(holds(summary, "\"exposed\":" + histogram({200})));
  CHECK(holds(summary, "," + histogram({200}) + "," + histogram({300}) + ","));
  fold(summary, {step(2, 3'000, true), step(3, 4'000, true)});
  CHECK(holds(summary, "\"paused\":[200,50,150,0,0]"));
}

void stepsNextToAMissingBoundaryAreNotCounted() {
  Summary summary(1, no_groups);
  fold(
      summary,
      {step(0, 0, false),
       step(0, 10, true),
       step(1, 20, true),
       step(3, 50, true),
       step(4, 65, true)});
  CHECK(holds(summary, "\"steps\":" + histogram({10, 15})));
}

void foldKinds(Summary& summary, uint64_t kinds, uint64_t count) {
  std::mt19937_64 random(11);
  for (uint64_t id = 1; id <= count; ++id) {
    const uint64_t kind = random() % kinds;
    Record made = issue(id, 1'000, 64, Op(1 + kind % 20));
    made.group = uint32_t(1 + kind / 20);
    const uint64_t end_ns = 1'000 + (random() >> (22 + random() % 42));
    fold(summary, {made, end(id, end_ns), wait(id, 1'000, end_ns, made.op)});
  }
}

uint64_t numberAfter(const std::string& text, const std::string& name) {
  return std::stoull(text.substr(text.find(name) + name.size(), 20));
}

void countsAddUp(const std::string& found, uint64_t count, uint64_t max_kinds) {
  uint64_t kinds = 0;
  uint64_t issues = 0;
  for (size_t at = 0; (at = found.find("{\"op\":", at)) != std::string::npos;
       ++at) {
    ++kinds;
    issues += numberAfter(found.substr(at, 200), "\"count\":");
  }
  CHECK(kinds > 1 && kinds <= max_kinds);
  CHECK_EQ(issues, count);
}

void kindsBeyondTheLimitAreMerged() {
  Summary summary(1, no_groups);
  foldKinds(summary, 1000, 5'000);
  const std::string found = text(summary);
  // The rest of each of the 20 operations is counted in one merged entry.
  countsAddUp(found, 5'000, Summary::kMaxOperations + 20);
  CHECK(numberAfter(found, "\"moved\":") > 1'000);
}

void theSummarySizeIsBounded() {
  Summary summary(1, no_groups);
  foldKinds(summary, 200, 300'000);
  const std::string found = text(summary);
  CHECK(found.size() <= kLimit);
  CHECK(found.size() > kLimit / 2);
  CHECK(numberAfter(found, "\"moved\":") > 0);
  countsAddUp(found, 300'000, 200);
  const std::string smaller = text(summary, 200'000);
  CHECK(smaller.size() <= 200'000);
  countsAddUp(smaller, 300'000, 200);
}

std::map<uint64_t, uint64_t> issuesByOp(const std::string& found) {
  std::map<uint64_t, uint64_t> issues;
  const std::string name = "{\"op\":";
  for (size_t at = 0; (at = found.find(name, at)) != std::string::npos; ++at) {
    issues[numberAfter(found.substr(at, 200), name)] +=
        numberAfter(found.substr(at, 200), "\"count\":");
  }
  return issues;
}

void countsOfAnOperationNeverShrink() {
  Summary summary(1, no_groups);
  fold(summary, {issue(1, 1'000, 64, Op::kBarrier)});
  std::mt19937_64 random(3);
  for (uint64_t id = 2; id <= 50'000; ++id) {
    const uint64_t kind = random() % 300;
    Record made = issue(id, 1'000, uint64_t(1) << (kind / 6), Op(1 + kind % 3));
    made.group = uint32_t(1 + kind % 2);
    fold(summary, {made, end(id, 1'000'000 + random() % 1'000'000)});
  }
  const auto all = issuesByOp(text(summary));
  CHECK_EQ(all.size(), 4u);
  const std::string smaller = text(summary, 50'000);
  CHECK(smaller.size() <= 50'000);
  CHECK(issuesByOp(smaller) == all);
  // An operation's only entry is kept, since merging it would save nothing.
  CHECK(smaller.find("{\"op\":16,\"group\":1,") != std::string::npos);
  CHECK(issuesByOp(text(summary, 3'000)).size() < all.size());
}

void aWaitInsideTheIssuingCallShowsNoEnd() {
  Summary summary(0, no_groups);
  Record blocked = wait(1, 100'000, 300'000, Op::kAllReduce);
  blocked.flags = kInIssue;
  fold(
      summary,
      {step(0, 50'000, false),
       issue(1, 100'000, 64, Op::kAllReduce),
       blocked,
       end(1, 700'000),
       wait(1, 600'000, 700'000, Op::kAllReduce),
       step(0, 900'000, true),
       issue(2, 1'000'000, 64, Op::kSend)});
  Record message = wait(2, 1'000'000, 1'200'000, Op::kSend);
  message.flags = kInIssue;
  fold(
      summary,
      {message,
       wait(2, 1'300'000, 1'500'000, Op::kSend),
       step(1, 2'000'000, true)});
  summary.settle();
  CHECK(holds(summary, "\"duration\":" + histogram({600'000})));
  CHECK(holds(summary, "\"duration\":" + histogram({500'000})));
  CHECK(holds(summary, "\"wait\":" + histogram({200'000, 100'000})));
  CHECK(holds(summary, "\"wait\":" + histogram({200'000, 200'000})));
  CHECK(holds(summary, "\"exposed\":" + histogram({400'000})));
}

// The interval is 1,000 times the cost of a summary, but at least 0.8 s and at
// most 5 s.
void theSummaryIntervalBoundsItsCost() {
  CHECK_EQ(untilNextSummaryNs(0), 800'000'000u);
  CHECK_EQ(untilNextSummaryNs(799'999), 800'000'000u);
  CHECK_EQ(untilNextSummaryNs(2'000'000), 2'000'000'000u);
  CHECK_EQ(untilNextSummaryNs(5'000'001), 5'000'000'000u);
  CHECK_EQ(untilNextSummaryNs(UINT64_MAX), 5'000'000'000u);
}

} // namespace

int main() {
  operationsAreJoinedInAnyOrder();
  operationsWithoutAnEnd();
  completionsFromDeviceEventsCount();
  waitsOfTheHostCountBesideADeviceForItsOwnOperations();
  waitsOfTheHostBeforeTheIssueDoNotCountBesideADevice();
  aWaitIsTheEndOfAnOperationWithoutAnother();
  pointToPointEndsWithItsWait();
  openOperationsBeyondTheLimitAreUnfinished();
  stepTimeIsSplitByPhase();
  waitsAreSplitAcrossPhases();
  aDevicesDataStreamIsNotItsComputeStream();
  pausesAreCountedByPhase();
  stepsNextToAMissingBoundaryAreNotCounted();
  kindsBeyondTheLimitAreMerged();
  theSummarySizeIsBounded();
  countsOfAnOperationNeverShrink();
  aWaitInsideTheIssuingCallShowsNoEnd();
  theSummaryIntervalBoundsItsCost();
  return check::report();
}
