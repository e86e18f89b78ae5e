// Python bindings of the C++ functions that reports use, without torch: no
// logic here.
//
// The GIL is released while a log is read, and while times are split into
// waiting and transfer. Only one thread at a time may feed a log. Different
// logs may be fed at the same time.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>
#include <array>

#include "inspector/follow.h"
#include "inspector/log_file.h"
#include "inspector/sequence.h"
#include "inspector/waits.h"
#include "reading/alike_dictionaries.h"
#include "reading/alike_objects.h"
#include "reading/bind_events.h"
#include "reading/bind_records.h"
#include "reading/bind_replay.h"
#include "reading/bind_traces.h"
#include "reading/joined_columns.h"
#include "reading/plain_json.h"
#include "reading/plain_pickle.h"

namespace py = pybind11;

namespace commprof {

namespace {

using namespace inspector;
using Members = std::vector<const Communicator*>;

// The text of a damaged file is not always UTF-8.
py::str textOf(const std::string& text) {
  PyObject* const decoded =
      PyUnicode_DecodeUTF8(text.data(), py::ssize_t(text.size()), "replace");
  if (decoded == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::str>(decoded);
}

template <class T>
py::array_t<T> arrayOf(const std::vector<T>& values) {
  return py::array_t<T>(py::ssize_t(values.size()), values.data());
}

// Arranges values in rows of `columns` values; no row if `columns` is 0.
py::array_t<double> matrixOf(
    const std::vector<double>& values,
    size_t columns) {
  const size_t rows = columns == 0 ? 0 : values.size() / columns;
  const std::vector<py::ssize_t> shape = {
      py::ssize_t(rows), py::ssize_t(columns)};
  return py::array_t<double>(shape, values.data());
}

const Stream* streamOf(const Communicator& member, const std::string& kind) {
  const auto found = member.streams.find(kind);
  return found == member.streams.end() ? nullptr : &found->second;
}

// Returns each member's stream of one kind. The stream is empty if the member
// has no such records.
std::vector<const Stream*> streamsOf(
    const Members& members,
    const std::string& kind) {
  static const Stream none;
  std::vector<const Stream*> streams;
  for (const Communicator* member : members) {
    const Stream* const stream = streamOf(*member, kind);
    streams.push_back(stream == nullptr ? &none : stream);
  }
  return streams;
}

Waits messagesOf(const Members& members, uint32_t blocks) {
  std::vector<int64_t> ranks;
  std::vector<const Stream*> sends;
  std::vector<const Stream*> receives;
  for (const Communicator* member : members) {
    ranks.push_back(member->rank);
    sends.push_back(streamOf(*member, "Send"));
    receives.push_back(streamOf(*member, "Recv"));
  }
  return splitMessages(ranks, sends, receives, blocks);
}

void bindLog(py::module_& m) {
  py::class_<Communicator>(
      m, "InspectorMember", "One process's membership in a communicator.")
      .def_property_readonly(
          "id", [](const Communicator& self) { return textOf(self.id); })
      .def_property_readonly(
          "name", [](const Communicator& self) { return textOf(self.name); })
      .def_property_readonly(
          "host", [](const Communicator& self) { return textOf(self.host); })
      .def_readonly("pid", &Communicator::pid)
      .def_readonly("rank", &Communicator::rank)
      .def_readonly("ranks", &Communicator::ranks)
      .def_readonly("nodes", &Communicator::nodes)
      .def_readonly("dropped", &Communicator::dropped)
      .def_property_readonly(
          "dumped_us",
          [](const Communicator& self) {
            return std::array{self.firstDumpUs, self.lastDumpUs};
          },
          "Times of the first and last dump on the host's clock, in us since "
          "1970; -1 if unknown.")
      .def_property_readonly(
          "kinds",
          [](const Communicator& self) {
            py::typing::Dict<py::str, py::typing::Tuple<int, int>> kinds;
            for (const auto& [kind, stream] : self.streams) {
              kinds[textOf(kind)] =
                  py::make_tuple(stream.records.size(), stream.graphCaptured);
            }
            return kinds;
          },
          "Number of records of each kind of operation, and number of records "
          "that were captured into CUDA graphs.")
      .def_property_readonly(
          "algorithms",
          [](const Communicator& self) {
            py::typing::List<py::typing::Tuple<py::str, int, py::str, int>> all;
            for (const auto& [kind, stream] : self.streams) {
              for (const auto& [of, records] : stream.algorithms) {
                all.append(
                    py::make_tuple(
                        textOf(kind), of.first, textOf(of.second), records));
              }
            }
            return all;
          },
          "Tuples of a kind of operation, a size, an algorithm with its "
          "protocol, and the number of such records.")
      .def(
          "sequence",
          [](const Communicator& self) {
            const Sequence found = sequenceOf(self);
            py::typing::List<py::typing::Tuple<py::str, int>> calls;
            for (const Call& call : found.calls) {
              calls.append(py::make_tuple(textOf(call.kind), call.sizeBytes));
            }
            return py::typing::Tuple<
                py::typing::List<py::typing::Tuple<py::str, int>>,
                int,
                int>(py::make_tuple(calls, found.turns, found.before));
          },
          "Returns the repeated sequence of calls (kind, size), the number of "
          "repetitions, and the number of calls before the first repetition.");
  py::class_<LogFile>(
      m, "InspectorLog", "Operations in one log of NCCL Inspector.")
      .def(py::init<std::string>(), py::arg("name"))
      .def(
          "feed",
          [](LogFile& self, const py::bytes& data) {
            const std::string_view bytes = data;
            const py::gil_scoped_release release;
            self.feed(bytes);
          },
          "Takes the next bytes of the file.",
          py::arg("data"))
      .def(
          "finish",
          [](LogFile& self) {
            const py::gil_scoped_release release;
            self.finish();
          },
          "Takes the rest of the file as its last line, which has no line end.")
      .def_property_readonly("name", &LogFile::name)
      .def_property_readonly(
          "version", [](const LogFile& self) { return textOf(self.version()); })
      .def_property_readonly("lines", &LogFile::lines)
      .def_property_readonly("operations", &LogFile::operations)
      .def_property_readonly("damaged_lines", &LogFile::damagedLines)
      .def_property_readonly("first_damaged_line", &LogFile::firstDamagedLine)
      .def_property_readonly("proxy_traces", &LogFile::proxyTraces)
      .def_property_readonly("dumped_us", &LogFile::dumpedUs)
      .def_property_readonly(
          "members",
          [](const LogFile& self) {
            Members members;
            for (const auto& member : self.communicators()) {
              members.push_back(member.get());
            }
            return members;
          },
          py::return_value_policy::reference_internal);
}

void bindWaits(py::module_& m) {
  py::class_<OfSize>(m, "InspectorSize", "Operations of one kind and size.")
      .def_readonly("size_bytes", &OfSize::sizeBytes)
      .def_readonly("calls", &OfSize::calls)
      .def_readonly("records", &OfSize::records)
      .def_readonly("wait_us", &OfSize::waitUs)
      .def_readonly("time_us", &OfSize::timeUs)
      .def_property_readonly("transfers_us", [](const OfSize& self) {
        return arrayOf(self.transfersUs);
      });
  py::class_<Waits>(
      m, "InspectorWaits", "Waiting and transfer of one kind of operation.")
      .def_readonly("calls", &Waits::calls)
      .def_readonly("complete_calls", &Waits::completeCalls)
      .def_readonly("lost_records", &Waits::lostRecords)
      .def_readonly("missing_calls", &Waits::missingCalls)
      .def_property_readonly(
          "lost_calls",
          [](const Waits& self) { return arrayOf(self.lostCalls); })
      .def_readonly("unmatched_records", &Waits::unmatchedRecords)
      .def_readonly("untimed_records", &Waits::untimedRecords)
      .def_readonly("different_sizes", &Waits::differentSizes)
      .def_readonly("unattributed_us", &Waits::unattributedUs)
      .def_readonly("sizes", &Waits::sizes)
      .def_property_readonly(
          "lost_wait_us",
          [](const Waits& self) {
            return matrixOf(self.lostWaitUs, self.timeUs.size());
          })
      .def_property_readonly(
          "unpaired_us",
          [](const Waits& self) {
            return matrixOf(self.unpairedUs, self.timeUs.size());
          })
      .def_property_readonly(
          "time_us", [](const Waits& self) { return arrayOf(self.timeUs); })
      .def_property_readonly(
          "whole_time_us",
          [](const Waits& self) { return arrayOf(self.wholeTimeUs); })
      .def_property_readonly(
          "waited_us",
          [](const Waits& self) {
            return matrixOf(self.waitedUs, self.timeUs.size());
          })
      .def_property_readonly(
          "caused_us",
          [](const Waits& self) {
            return matrixOf(self.causedUs, self.timeUs.size());
          })
      .def_property_readonly("waiters_us", [](const Waits& self) {
        return matrixOf(self.waitersUs, self.timeUs.size());
      });
  m.def(
      "inspector_collectives",
      [](const Members& members,
         const std::string& kind,
         uint64_t ranks,
         uint32_t blocks) {
        const py::gil_scoped_release release;
        return splitCollectives(streamsOf(members, kind), ranks, blocks);
      },
      "Splits each rank's time in collectives into waiting and transfer. Only "
      "for collectives in which every rank waits for all ranks.",
      py::arg("members"),
      py::arg("kind"),
      py::arg("ranks"),
      py::arg("blocks"));
  m.def(
      "inspector_messages",
      [](const Members& members, uint32_t blocks) {
        const py::gil_scoped_release release;
        return messagesOf(members, blocks);
      },
      "Splits the time in sends and recvs between the members of a "
      "communicator into waiting and transfer.",
      py::arg("members"),
      py::arg("blocks"));
  m.def(
      "inspector_unsplit",
      [](const Members& members, const std::string& kind) {
        const py::gil_scoped_release release;
        return unsplit(streamsOf(members, kind));
      },
      "Sums up the times of operations that cannot be split into waiting and "
      "transfer.",
      py::arg("members"),
      py::arg("kind"));
}

void bindFollowing(py::module_& m) {
  using Followed = std::vector<Communicator*>;
  m.def(
      "inspector_join",
      [](const Followed& members) { return joinLogs(members); },
      "Joins one communicator's records from several logs of one process. The "
      "first of the returned members then has all records. Logs that overlap "
      "in time are left out.",
      py::arg("members"),
      py::return_value_policy::reference);
  m.def(
      "inspector_take_collectives",
      [](const Followed& members,
         const std::vector<uint8_t>& isFollowed,
         const std::string& kind,
         uint64_t ranks,
         uint32_t blocks) {
        const py::gil_scoped_release release;
        return takeCollectives(members, isFollowed, kind, ranks, blocks);
      },
      "Like inspector_collectives, but only for calls that all members with a "
      "nonzero `is_followed` have written. Drops the records of these calls.",
      py::arg("members"),
      py::arg("is_followed"),
      py::arg("kind"),
      py::arg("ranks"),
      py::arg("blocks"));
  m.def(
      "inspector_take_messages",
      [](const Followed& members, uint32_t blocks, bool isAll) {
        const py::gil_scoped_release release;
        return takeMessages(members, blocks, isAll);
      },
      "Like inspector_messages, but only for messages that both ranks have "
      "written. For all messages if `is_all` is true. Drops the records of "
      "these messages.",
      py::arg("members"),
      py::arg("blocks"),
      py::arg("is_all"));
  m.def(
      "inspector_take_unsplit",
      [](const Followed& members, const std::string& kind) {
        const py::gil_scoped_release release;
        return takeUnsplit(members, kind);
      },
      "Like inspector_unsplit, but also drops the records.",
      py::arg("members"),
      py::arg("kind"));
}

} // namespace

} // namespace commprof

PYBIND11_MODULE(_reading, m) {
  m.doc() = "C++ functions that reports use.";
  commprof::bindLog(m);
  commprof::bindWaits(m);
  commprof::bindFollowing(m);
  commprof::bindEvents(m);
  commprof::bindReplay(m);
  commprof::bindRecords(m);
  commprof::bindTraces(m);
  commprof::bindJoinedColumns(m);
  commprof::bindPlainJson(m);
  commprof::bindPickles(m);
  commprof::bindAlikeDictionaries(m);
  commprof::bindAlikeObjects(m);
}
