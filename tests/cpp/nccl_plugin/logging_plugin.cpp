// A profiler plugin of NCCL that writes what NCCL reports to the file $LOGGED.
// The plugin asks for the events of $LOGGED_MASK. The first event of the
// communicator "dp2" replaces this mask by $LOGGED_MASK_LATER.
// Values of $LOGGED_FAULT:
//   init    init() fails
//   errors  all other functions fail, after they have done their work
//   null    there are no contexts, and only operations have handles
//   odd     handles are odd numbers instead of addresses
//   any     handles are null, addresses or odd numbers; nothing is logged
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nccl_plugin/interface.h"

using namespace commprof::nccl;

namespace {

std::mutex g_mutex;

bool hasFault(const char* fault) {
  const char* given = std::getenv("LOGGED_FAULT");
  return given != nullptr && std::strcmp(given, fault) == 0;
}
const Result kResult = hasFault("errors") ? 3 : kSuccess;
// NCCL reads this mask again and again.
int* g_mask = nullptr;
const bool g_odd = hasFault("odd");
const bool g_null = hasFault("null");
const bool g_any = hasFault("any");

struct Context {
  std::string name;
  std::vector<std::string> lines;
  int events = 0;
};
struct Logged {
  Context* context;
  int number;
};
// Events are kept until the end, so that a handle is always recognised.
std::vector<std::unique_ptr<Context>> g_contexts;
std::vector<std::unique_ptr<Logged>> g_events;
Context g_foreign{"of other processes", {}, 0};
Context g_without_context{"without context", {}, 0};

void* handleOf(const Logged* event, size_t place) {
  return g_odd ? reinterpret_cast<void*>(2 * place + 1)
               : const_cast<Logged*>(event);
}
const Logged* eventOf(void* handle) {
  for (size_t i = g_events.size(); i > 0; --i) {
    if (handleOf(g_events[i - 1].get(), i - 1) == handle) {
      return g_events[i - 1].get();
    }
  }
  std::fprintf(stderr, "%p is no handle\n", handle);
  std::abort();
}
std::string numberOf(void* handle) {
  return handle == nullptr ? "-" : std::to_string(eventOf(handle)->number);
}

Result init(void** context, int* mask, const char* name, int ranks, int rank) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (hasFault("init")) {
    *context = &g_mutex;
    *mask = ~0;
    return 2;
  }
  g_mask = mask;
  const char* wanted = std::getenv("LOGGED_MASK");
  const int events =
      wanted == nullptr ? ~0 : int(std::strtol(wanted, nullptr, 0));
  __atomic_store_n(mask, events, __ATOMIC_RELAXED);
  if (!g_null) {
    g_contexts.push_back(std::make_unique<Context>());
    g_contexts.back()->name = name == nullptr ? "unnamed" : name;
    g_contexts.back()->lines.push_back(
        "init " + std::to_string(ranks) + " " + std::to_string(rank));
    *context = g_contexts.back().get();
  }
  return kSuccess;
}

#if VERSION == 3
using Event = DescriptorV3;
#elif VERSION == 4
using Event = DescriptorV4;
#else
using Event = DescriptorV5;
#endif
template <class Operation>
std::string groupOf(const Operation& operation) {
  if constexpr (requires { operation.group; }) {
    return " of " + numberOf(operation.group);
  }
  return "";
}

std::string fieldsOf(const Event& event) {
  const CollFields& coll = event.coll.fields;
  switch (event.type) {
    case kColl:
      return std::string(coll.func) + " " + std::to_string(coll.count) + " " +
          coll.datatype + " " + std::to_string(coll.channels) + " " +
          coll.algorithm + groupOf(event.coll);
    case kP2p:
      return event.p2p.fields.func + groupOf(event.p2p);
    case kProxyOp:
      return "peer " + std::to_string(event.proxy_op.peer);
    case kKernelCh:
      return "channel " + std::to_string(event.kernel_ch.channel);
    default:
      return "";
  }
}

Result start(void* given, void** handle, Event* event) {
  if (g_any) {
    static std::atomic<uint64_t> number{0};
    const uint64_t next = number++;
    *handle = reinterpret_cast<void*>(
        next % 3 == 0 ? 0 : next * 8 + (next % 3 == 1 ? 0 : 5));
    return kSuccess;
  }
  const std::lock_guard<std::mutex> lock(g_mutex);
  const bool foreign =
      event->type == kProxyOp && event->proxy_op.pid != getpid();
  Context* context = g_null ? &g_without_context : static_cast<Context*>(given);
  std::string parent = foreign ? "of another process" : numberOf(event->parent);
  // The context and the parent of another process are no addresses here.
  if (foreign) {
    context = &g_foreign;
  } else if (event->parent != nullptr) {
    context = eventOf(event->parent)->context;
  }
  const char* later = std::getenv("LOGGED_MASK_LATER");
  if (later != nullptr && context->name == "dp2" && context->events == 0) {
    __atomic_store_n(
        g_mask, int(std::strtol(later, nullptr, 0)), __ATOMIC_RELAXED);
  }
  g_events.push_back(
      std::make_unique<Logged>(Logged{context, ++context->events}));
  context->lines.push_back(
      std::to_string(context->events) + " begins: type " +
      std::to_string(event->type) + " rank " + std::to_string(event->rank) +
      " parent " + parent + " " + fieldsOf(*event));
  if (!g_null || event->type == kColl || event->type == kP2p) {
    *handle = handleOf(g_events.back().get(), g_events.size() - 1);
  }
  return kResult;
}

void logged(void* handle, const std::string& what) {
  if (g_any) {
    return;
  }
  const std::lock_guard<std::mutex> lock(g_mutex);
  const Logged* event = eventOf(handle);
  event->context->lines.push_back(std::to_string(event->number) + what);
}
Result stop(void* handle) {
  logged(handle, " stops");
  return kResult;
}
Result record(void* handle, int state, StateArgs*) {
  logged(handle, " is in state " + std::to_string(state));
  return kResult;
}

void write(const Context& context) {
  const char* path = std::getenv("LOGGED");
  std::FILE* file = std::fopen(path == nullptr ? "/dev/null" : path, "a");
  std::fprintf(file, "\f%s\n", context.name.c_str());
  for (const std::string& line : context.lines) {
    std::fprintf(file, "%s\n", line.c_str());
  }
  std::fclose(file);
}
Result finalize(void* context) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  write(*static_cast<Context*>(context));
  return kResult;
}
// NCCL never finalises these two contexts, so their lines are written when the
// library is closed.
struct AtEnd {
  ~AtEnd() {
    for (const Context* context : {&g_foreign, &g_without_context}) {
      if (!context->lines.empty()) {
        write(*context);
      }
    }
  }
} g_at_end;

#if VERSION == 3
Result initTable(void** context, int* mask) {
  const char* const name = nullptr;
  const int ranks = 0, rank = 0;
#elif VERSION == 4
Result initTable(
    void** context,
    int* mask,
    const char* name,
    uint64_t,
    int,
    int ranks,
    int rank,
    Logger) {
#else
Result initTable(
    void** context,
    uint64_t,
    int* mask,
    const char* name,
    int,
    int ranks,
    int rank,
    Logger) {
#endif
  return init(context, mask, name, ranks, rank);
}

} // namespace

#define COMMPROF_JOINED(name, version) name##version
#define COMMPROF_TABLE(version) COMMPROF_JOINED(ncclProfiler_v, version)

extern "C"
    __attribute__((visibility("default"))) Table<decltype(&initTable), Event>
        COMMPROF_TABLE(VERSION);
Table<decltype(&initTable), Event> COMMPROF_TABLE(
    VERSION) = {"logging", initTable, start, stop, record, finalize};
