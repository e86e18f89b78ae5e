// The operation that a thread is issuing. Callbacks that the backend's library
// makes meanwhile belong to this operation, for example NCCL's calls of its
// profiler plugin.
#pragma once

#include <cstdint>

namespace commprof {

// Id of the operation; 0 if the thread is issuing none.
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
