#include "device/device.h"
#include "python/bindings.h"

#include <pybind11/stl.h>

#include "base/error.h"
#include "device/operators.h"
#include "python/offline_engine.h"

namespace py = pybind11;

namespace turbomind {

void bind_engine(py::module_& m) {
  static py::exception<Error> unavailable(m, "EngineUnavailable", PyExc_RuntimeError);
  py::register_local_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const Error& error) {
      switch (error.code()) {
        case ErrorCode::kNotFound:
          PyErr_SetString(PyExc_FileNotFoundError, error.what());
          break;
        case ErrorCode::kUnavailable:
          py::set_error(unavailable, error.what());
          break;
        case ErrorCode::kInternal:
          PyErr_SetString(PyExc_RuntimeError, error.what());
          break;
        default:
          PyErr_SetString(PyExc_ValueError, error.what());
      }
    }
  });
  // Local, because one process may load several modules that have it.
  py::class_<OfflineEngine>(m, "Engine", py::module_local())
      .def(py::init<const std::string&, const std::string&, std::vector<std::string>, std::vector<std::string>,
                    std::vector<std::string>>(),
           py::arg("directory"), py::arg("settings_json"), py::arg("worker") = std::vector<std::string>(),
           py::arg("publisher") = std::vector<std::string>(), py::arg("grammar") = std::vector<std::string>(),
           py::call_guard<py::gil_scoped_release>())
      .def("submit", &OfflineEngine::submit, py::arg("input_ids"), py::arg("params"))
      .def("cancel", &OfflineEngine::cancel, py::arg("request"))
      .def("load_adapter", &OfflineEngine::load_adapter, py::arg("name"), py::arg("directory"))
      .def("unload_adapter", &OfflineEngine::unload_adapter, py::arg("name"))
      .def("adapters", &OfflineEngine::adapters)
      .def("poll", &OfflineEngine::poll, py::arg("timeout"))
      .def("stats", &OfflineEngine::stats)
      .def("close", &OfflineEngine::close)
      .def_property_readonly("notes", &OfflineEngine::notes)
      .def_property_readonly("session_len", &OfflineEngine::session_len)
      .def_property_readonly("vocab_size", &OfflineEngine::vocab_size)
      .def_property_readonly("hidden_size", &OfflineEngine::hidden_size);
  m.def("available_devices", &available_devices);
}

}  // namespace turbomind
