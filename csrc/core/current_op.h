// The operation whose issuing call a thread is in. The backend's library may
// make callbacks during the call, as NCCL does to its profiler plugin. Such
// callbacks belong to this operation.
#pragma once

#include <cstdint>

namespace commprof {

// Id of the operation; 0 while the thread is in no issuing call.
inline thread_local uint64_t t_current_op = 0;

// Placed around the call of the backend.
class InsideOp {
 public:
  explicit InsideOp(uint64_t op_id) noexcept : outer_(t_current_op) {
    t_current_op = op_id;
  }
  ~InsideOp() {
    t_current_op = outer_;
  }
  InsideOp(const InsideOp&) = delete;
  InsideOp& operator=(const InsideOp&) = delete;

 private:
  const uint64_t outer_;
};

} // namespace commprof
