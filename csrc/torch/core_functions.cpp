#include "torch/core_functions.h"

#include "core/recorder.h"
#include "torch/capture/completion.h"
#include "torch/capture/ddp/ddp_hook.h"
#include "torch/capture/ddp/finalize.h"
#include "torch/capture/process_groups.h"

namespace commprof {

const CoreFunctions& coreFunctions() noexcept {
  static constexpr CoreFunctions functions{
      []() noexcept { return Recorder::instance().enabled(); },
      []() noexcept { return Recorder::instance().nextOpId(); },
      &Recorder::threadId,
      [](const Record& record) noexcept { Recorder::instance().push(record); },
      &recordEnd,
      [](c10d::ProcessGroup& group) -> GroupInfo& {
        return groupInfo(group, c10::DeviceType::CPU);
      },
      [](const GroupInfo& group) noexcept { return group.id; },
      [](GroupInfo& group, Op op, int64_t peer) {
        return group.nextMessage(op, peer);
      },
      &currentBucket,
      &bracketFinalize,
      &worksFor,
  };
  return functions;
}

} // namespace commprof
