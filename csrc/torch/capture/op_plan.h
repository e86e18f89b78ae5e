// Meaning of the arguments of a c10d operator.
#pragma once

#include <ATen/core/function_schema.h>

#include <optional>
#include <string>
#include <vector>

#include "core/record.h"

namespace commprof {

inline Op opOf(const std::string& dispatcher_name) {
#define X(name, text, dispatcher, awaits) \
  if (dispatcher_name == dispatcher) {    \
    return Op::k##name;                   \
  }
  COMMPROF_OPS(X)
#undef X
  if (dispatcher_name == "gather_into_tensor_") { // from torch 2.14 on
    return Op::kGather;
  }
  return Op::kOther;
}

// Position and meaning of one operator's arguments, read once from its schema.
struct OpPlan {
  Op op = Op::kOther;
  int group = -1;
  int reduce_op = -1;
  int peer = -1; // root, source or destination rank
  // Index of the argument async_op. If that argument is false, a device runs
  // the operation in the caller's stream.
  int async_op = -1;
  // Index of a barrier's tensor, which only names the device.
  int placed_by = -1;
  struct Buffers {
    int argument;
    bool is_input;
    bool is_output; // both true: the operator works in place
  };
  std::vector<Buffers> buffers;
  size_t arguments = 0;
  bool returns_work = false; // false: the operator blocks and returns nothing

  static std::optional<OpPlan> make(const c10::FunctionSchema& schema) {
    OpPlan plan;
    plan.op = opOf(schema.name().substr(schema.name().find("::") + 2));
    const bool moves_data =
        plan.op != Op::kBarrier && plan.op != Op::kMonitoredBarrier;
    const auto& arguments = schema.arguments();
    plan.arguments = arguments.size();
    plan.returns_work = !schema.returns().empty();
    for (int i = 0; i < int(arguments.size()); ++i) {
      const std::string& name = arguments[i].name();
      const std::string type = arguments[i].type()->str();
      if (type.find("ProcessGroup") != std::string::npos) {
        plan.group = i;
      } else if (type.find("ReduceOp") != std::string::npos) {
        plan.reduce_op = i;
      } else if (
          type == "int" &&
          (name.ends_with("_rank") || name == "dst" || name == "src")) {
        plan.peer = i;
      } else if (name == "async_op") {
        plan.async_op = i;
      } else if (!moves_data && type == "Tensor") {
        plan.placed_by = i;
      } else if (
          moves_data && type.find("Tensor") != std::string::npos &&
          type.find('?') == std::string::npos) {
        const bool receives =
            plan.op == Op::kRecv || plan.op == Op::kRecvAnySource;
        plan.buffers.push_back(
            {i,
             !name.starts_with("output") && !receives,
             !name.starts_with("input") && plan.op != Op::kSend});
      }
    }
    return plan.group < 0 ? std::nullopt : std::optional<OpPlan>(plan);
  }
};

} // namespace commprof
