// The device events that a completed future holds, which torch keeps private.
//
// What torch offers in their place, a callback with `uses_future`, would change
// the program: it takes a stream out of the pool that the program's own streams
// come from, which then wait for our collective too; and it tells the caching
// allocator that the tensors are in use on that stream, so that their memory is
// free later. To make one of our streams wait, the events alone will do.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

namespace commprof {

namespace private_member {

// An explicit instantiation may name what is private ([temp.spec.general]/6).
template <auto Member>
struct Events {
  friend const std::vector<c10::Event>& eventsOf(
      const c10::ivalue::Future& future) {
    return future.*Member;
  }
};
const std::vector<c10::Event>& eventsOf(const c10::ivalue::Future& future);
template struct Events<&c10::ivalue::Future::events_>;

} // namespace private_member

// Of a future that is completed; empty where its value is not on a device.
inline const std::vector<c10::Event>& eventsOf(
    const c10::ivalue::Future& future) {
  return private_member::eventsOf(future);
}

} // namespace commprof
