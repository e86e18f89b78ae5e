#include "nccl_plugin/run.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "base/clock.h"
#include "core/recorder.h"
#include "nccl_plugin/machine.h"
#include "nccl_plugin/names.h"
#include "nccl_plugin/operations.h"

namespace commprof::nccl {

namespace {

std::atomic<bool> g_joined{false};
std::atomic<bool> g_on{true};
std::atomic<bool> g_says{false};
std::atomic<bool> g_said{false};
std::atomic<bool> g_open{false};
std::atomic<int*> g_mask{nullptr};
std::atomic<int> g_asked{0};
std::atomic<int> g_asked_by_user{0};
std::mutex g_opening; // never taken in a forked child

void turnOff() noexcept {
  g_on.store(false);
  askFor(0);
  g_mask.store(nullptr); // NCCL may free its mask when it ends
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns -1 if the text is not a whole number of at most `most_digits` digits.
int64_t wholeNumber(const std::string& text, size_t most_digits = 9) {
  const bool digits = !text.empty() && text.size() <= most_digits &&
      text.find_first_not_of("0123456789") == std::string::npos;
  return digits ? std::atoll(text.c_str()) : -1;
}

std::string listOf(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) {
    list += (list.empty() ? "" : ", ") + jsonString(name);
  }
  return "[" + list + "]";
}

std::string datatypesJson() {
  std::vector<std::string> names;
  for (const DatatypeName& datatype : kDatatypes) {
    names.emplace_back(datatype.torch);
  }
  return listOf(names);
}

#define COMMPROF_NAME(name, text, ...) text, // for a table of record.h

// Returns JSON members that describe this process, for the trace's metadata and
// for the owner file of the rings.
std::string processJson() {
  timespec realtime;
  clock_gettime(CLOCK_REALTIME, &realtime);
  const uint64_t realtime_ns =
      uint64_t(realtime.tv_sec) * 1'000'000'000 + uint64_t(realtime.tv_nsec);
  return "\"pid\": " + std::to_string(getpid()) +
      ", \"machine\": " + machineJson() +
      ", \"clock\": {\"source\": \"CLOCK_MONOTONIC\", \"monotonic_ns\": " +
      std::to_string(nowNs()) +
      ", \"realtime_ns\": " + std::to_string(realtime_ns) + "}";
}

std::string metadataJson(
    const Place& place,
    int attempt,
    const std::string& ring_prefix,
    const std::string& process) {
  const int64_t local_rank = wholeNumber(variable("LOCAL_RANK"));
  const std::string elastic = variable("TORCHELASTIC_RUN_ID");
  return "{\"rank\": " + std::to_string(place.rank) +
      ", \"world_size\": " + std::to_string(place.world_size) +
      ", \"local_rank\": " + std::to_string(std::max(local_rank, int64_t(0))) +
      ", \"restart_count\": " + std::to_string(attempt) + ", " + process +
      ", \"main_thread\": " + std::to_string(Recorder::threadId()) +
      ", \"command\": " + commandJson() +
      ", \"python\": \"\", \"torch\": \"\", \"commprof\": \"" COMMPROF_VERSION
      "\", \"backend\": \"nccl\", \"threads\": 0, \"capture\": \"nccl\""
      ", \"ring_prefix\": " +
      jsonString(ring_prefix) +
      ", \"record_bytes\": " + std::to_string(sizeof(Record)) +
      ", \"kinds\": " + listOf({COMMPROF_KINDS(COMMPROF_NAME)}) +
      ", \"ops\": " + listOf({COMMPROF_OPS(COMMPROF_NAME)}) +
      ", \"phases\": " + listOf({COMMPROF_PHASES(COMMPROF_NAME)}) +
      ", \"dtypes\": " + datatypesJson() +
      ", \"hooks\": [], \"elastic_run_id\": " + jsonString(elastic) + "}";
}

// Creates the trace file. Throws if the file exists, because another process
// may be writing to it.
void claim(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666);
  if (file >= 0) {
    close(file);
    return;
  }
  if (errno == EEXIST) {
    throw std::runtime_error(
        path +
        " exists already, from an earlier run or from commprof's own capture; "
        "give the plugin an empty directory as COMMPROF_OUT");
  }
  throw std::system_error(errno, std::generic_category(), path);
}

uint64_t randomNumber() {
  uint64_t number = 0;
  while (number == 0) {
    if (getrandom(&number, sizeof(number), 0) != sizeof(number)) {
      number = nowNs() ^ uint64_t(getpid()) << 48;
    }
  }
  return number;
}

std::string ringPrefix() {
  if (access("/dev/shm", W_OK) != 0) {
    return "";
  }
  char token[16];
  std::snprintf(token, sizeof(token), "%08x", unsigned(randomNumber()));
  return "/dev/shm/commprof-" + std::to_string(getuid()) + "-" +
      std::to_string(getpid()) + "-" + token + "-";
}

// Path of the file that describes the process of the rings; empty if there is
// none. commprof/trace/ring.py needs it to remove the rings of a killed
// process.
std::string g_owner;

void writeOwner(const RecorderOptions& options, const std::string& process) {
  const std::string path = options.ring_prefix + "owner";
  if (options.ring_prefix.empty()) {
    return;
  }
  if (std::FILE* file = std::fopen(path.c_str(), "wxe")) {
    g_owner = path;
    std::fprintf(
        file,
        "{\"trace\": %s, \"session\": %llu, %s}",
        jsonString(options.trace_path).c_str(),
        (unsigned long long)options.session,
        process.c_str());
    std::fclose(file);
  }
}

void endRun() {
  if (!Recorder::instance().started()) {
    return; // a forked child
  }
  settleOperations(nullptr);
  Recorder::instance().stop();
  if (!g_owner.empty()) {
    unlink(g_owner.c_str());
  }
}

} // namespace

void join() noexcept {
  g_joined.store(true);
}

bool isJoined() noexcept {
  return g_joined.load(std::memory_order_relaxed);
}

bool isOn() noexcept {
  return g_on.load(std::memory_order_relaxed);
}

bool isRecording() noexcept {
  return isOn() && Recorder::instance().enabled();
}

Level levelFromEnvironment() {
  const std::string value = variable("COMMPROF_NCCL");
  constexpr const char* kLevels[] = {"", "operations", "kernels", "network"};
  for (size_t i = 0; i < std::size(kLevels); ++i) {
    if (value == kLevels[i] || (i == 0 && value == "auto")) {
      return Level(i);
    }
  }
  throw std::runtime_error(
      value == "off" ? "COMMPROF_NCCL=off"
                     : "COMMPROF_NCCL=" + jsonString(value) +
              " is not valid (allowed: auto, off, operations, kernels, "
              "network); correct it, or unset the variable");
}

void setFirstRank(bool first) noexcept {
  g_says.store(first && !g_said.load());
}

void sayRecorded() noexcept {
  if (g_says.load(std::memory_order_relaxed) && !g_said.exchange(true)) {
    g_says.store(false);
    std::fputs(
        "commprof: NCCL's own operations are recorded too (COMMPROF_NCCL=off "
        "leaves them out)\n",
        stderr);
  }
}

void switchOff(const std::string& reason) noexcept {
  if (g_on.exchange(false)) {
    std::fprintf(
        stderr, "commprof: NCCL is not recorded: %s\n", reason.c_str());
  }
  turnOff();
}

void holdMask(int* mask) noexcept {
  g_mask.store(mask);
}

int mask() noexcept {
  return g_asked.load(std::memory_order_relaxed) |
      g_asked_by_user.load(std::memory_order_relaxed);
}

namespace {

void ask(std::atomic<int>& asked, int events) noexcept {
  asked.store(events, std::memory_order_relaxed);
  if (int* variable = g_mask.load()) {
    __atomic_store_n(variable, mask(), __ATOMIC_RELAXED);
  }
}

} // namespace

void askFor(int events) noexcept {
  ask(g_asked, events);
}

void askForUser(int events) noexcept {
  if (events != g_asked_by_user.load(std::memory_order_relaxed)) {
    ask(g_asked_by_user, events);
  }
}

bool isAsked(uint64_t type) noexcept {
  return (uint64_t(unsigned(g_asked.load(std::memory_order_relaxed))) & type) !=
      0;
}

int thisProcess() noexcept {
  static const int process = getpid();
  return process;
}

std::optional<Place> placeFromLauncher() {
  struct Names {
    const char* rank;
    const char* world_size;
    const char* needed; // must be set too; empty: none
  };
  constexpr Names kTorchrunAndMpi[] = {
      {"RANK", "WORLD_SIZE", ""},
      {"OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK"},
      {"MV2_COMM_WORLD_RANK",
       "MV2_COMM_WORLD_SIZE",
       "MV2_COMM_WORLD_LOCAL_RANK"},
      {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
  };
  const auto place = [](const Names& names) -> std::optional<Place> {
    if (*names.needed != 0 && std::getenv(names.needed) == nullptr) {
      return std::nullopt;
    }
    const int64_t rank = wholeNumber(variable(names.rank));
    const int64_t size = wholeNumber(variable(names.world_size));
    return rank >= 0 && rank < size
        ? std::optional<Place>({int(rank), int(size)})
        : std::nullopt;
  };
  for (const Names& names : kTorchrunAndMpi) {
    if (const std::optional<Place> launched = place(names)) {
      return launched;
    }
  }
  // Steps that srun did not start have ids just below 2**32.
  const int64_t step = wholeNumber(variable("SLURM_STEP_ID"), 10);
  if (step >= 0 && step < 0xffff'fff0) {
    const bool of_step = std::getenv("SLURM_STEP_NUM_TASKS") != nullptr;
    const char* tasks = of_step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    if (const auto launched = place({"SLURM_PROCID", tasks, ""})) {
      return launched;
    }
  }
  return place({"PMI_RANK", "PMI_SIZE", ""});
}

void openRun(const Place& place) {
  const std::lock_guard<std::mutex> lock(g_opening);
  if (g_open.load() || !isOn()) {
    return;
  }
  const std::string given = variable("COMMPROF_OUT");
  if (given.empty()) {
    throw std::runtime_error(
        "COMMPROF_OUT is not set; set it to a directory for the traces");
  }
  std::filesystem::create_directories(given);
  // Made absolute, because the program may change its working directory.
  const std::string directory = std::filesystem::absolute(given).string();
  const auto attempt = int(std::max(
      wholeNumber(variable("TORCHELASTIC_RESTART_COUNT")), int64_t(0)));
  const std::string path = directory + "/rank_" + std::to_string(place.rank) +
      (attempt == 0 ? "" : ".attempt_" + std::to_string(attempt)) + ".trace";
  claim(path);
  RecorderOptions options;
  options.trace_path = path;
  options.ring_prefix = ringPrefix();
  const std::string process = processJson();
  options.metadata_json =
      metadataJson(place, attempt, options.ring_prefix, process);
  options.session = randomNumber();
  Recorder::instance().start(options);
  writeOwner(options, process);
  g_open.store(true);
  pthread_atfork(nullptr, nullptr, [] { turnOff(); });
  std::atexit(endRun);
}

bool isRunOpen() noexcept {
  return isJoined() || g_open.load(std::memory_order_relaxed);
}

} // namespace commprof::nccl
