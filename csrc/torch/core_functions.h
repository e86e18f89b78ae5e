// The functions that the profiler gives to C++ modules of its satellite
// packages (commprof/satellites.py), such as csrc/tune. Besides these
// functions, such a module may use only csrc/base, core/record.h and
// torch/capture/ddp/mean_all_reduce.h.
//
// A module is not linked with the core, because a process must have only one
// recorder. The module gets this table from the loaded core, as a capsule.
#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <cstdint>

#include "core/record.h"

namespace c10d {
class ProcessGroup;
}

namespace commprof {

struct GroupInfo;

// All functions may be called by any thread, without the GIL.
struct CoreFunctions {
  // Recorder (core/recorder.h): enabled(), nextOpId(), threadId(), push().
  bool (*recording)() noexcept;
  uint64_t (*next_op_id)() noexcept;
  uint32_t (*thread_id)() noexcept;
  void (*push)(const Record& record) noexcept;
  // Completion (torch/capture/completion.h): recordEnd().
  void (*record_end)(uint64_t op_id, Op op, bool failed);
  // Groups (torch/capture/process_groups.h): groupInfo() for CPUs, the group's
  // id, and nextMessage().
  GroupInfo& (*group)(c10d::ProcessGroup& group);
  uint32_t (*group_id)(const GroupInfo& group) noexcept;
  uint32_t (*next_message)(GroupInfo& group, Op op, int64_t peer);
  // Bucket hook (torch/capture/ddp/ddp_hook.h): currentBucket().
  uint64_t (*current_bucket)() noexcept;
  // Finalisation (torch/capture/ddp/finalize.h): bracketFinalize(), worksFor().
  int (*bracket_finalize)();
  void (*works_for)(int graph_task) noexcept;
};

// A communication hook of a module outside of the core, such as csrc/tune.
// BucketHook runs it as its inner hook.
class InnerHook : public c10d::CommHookInterface {};

// Attribute of the core's Python module that holds the capsule, and name of the
// capsule. The name contains a hash of this header and core/record.h, so that a
// module refuses a core with other headers.
inline constexpr const char* kCoreFunctionsAttribute = "CORE_FUNCTIONS";
inline constexpr const char* kCoreFunctionsName =
    "commprof core functions " COMMPROF_CORE_HASH;

// Defined only in the core.
const CoreFunctions& coreFunctions() noexcept;

} // namespace commprof
