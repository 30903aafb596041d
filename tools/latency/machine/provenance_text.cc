// What was read of a machine, for people. Its JSON may come from a file, so nothing is taken for granted.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "numa/topology.h"
#include "tools/doctor/host_facts.h"
#include "tools/latency/machine/provenance.h"

namespace fastdecode {

namespace {

using Json = nlohmann::json;

const Json& At(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

std::vector<Json> Elements(const Json& array) {
  return array.is_array() ? array.get<std::vector<Json>>() : std::vector<Json>();
}

// "" for null and for what is neither text nor a number.
std::string Text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  if (value.is_number_integer()) return absl::StrCat(value.get<int64_t>());
  if (value.is_number()) return absl::StrFormat("%.2f", value.get<double>());
  return "";
}

std::string TextOr(const Json& value, const char* otherwise) {
  const std::string text = Text(value);
  return text.empty() ? otherwise : text;
}

std::string Bytes(const Json& value) {
  return value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0)
             ? FormatBytes(value.get<uint64_t>())
             : std::string(kNotReadable);
}

// Parts of a line, those that are empty left out.
class Parts {
 public:
  // `before` and `after` go around what is not empty.
  Parts& Add(const std::string& text, const char* before = "", const char* after = "") {
    if (!text.empty()) parts_.push_back(absl::StrCat(before, text, after));
    return *this;
  }
  std::string Join(const char* otherwise = kNotReadable) const {
    return parts_.empty() ? otherwise : absl::StrJoin(parts_, ", ");
  }

 private:
  std::vector<std::string> parts_;
};

std::string DescribeProcessor(const Json& cpu) {
  const std::string online = Text(At(cpu, "online")), allowed = Text(At(cpu, "allowed"));
  Parts parts;
  parts.Add(TextOr(At(cpu, "model"), "model not readable"));
  parts.Add(TextOr(At(cpu, "microcode"), kNotReadable), "microcode ");
  parts.Add(online == allowed ? "" : allowed, "CPUs ");
  parts.Add(online, online == allowed ? "CPUs " : "of ", " online");
  parts.Add(Text(At(cpu, "smt")), "hyperthreads ");
  return parts.Join();
}

std::string DescribeFrequency(const Json& cpu) {
  return Parts()
      .Add(TextOr(At(cpu, "governor"), kNotReadable), "governor ")
      .Add(Text(At(cpu, "frequency_driver")), "driver ")
      .Add(Text(At(cpu, "boost")), "boost ")
      .Join();
}

std::string DescribeIdle(const Json& idle) {
  std::vector<std::string> states;
  for (const Json& state : Elements(At(idle, "states"))) {
    std::string text = TextOr(At(state, "name"), "?");
    if (At(state, "latency_us").is_number()) absl::StrAppend(&text, " ", Text(At(state, "latency_us")), " us");
    if (At(state, "disabled") == Json(true)) text += " disabled";
    states.push_back(text);
  }
  return Parts()
      .Add(TextOr(At(idle, "driver"), kNotReadable), "driver ")
      .Add(Text(At(idle, "governor")), "governor ")
      .Add(absl::StrJoin(states, ", "), "states ")
      .Join();
}

std::string DescribeMemory(const Json& memory) {
  std::vector<std::string> nodes;
  for (const Json& node : Elements(At(memory, "nodes"))) {
    Parts parts;
    parts.Add(TextOr(At(node, "cpus"), kNotReadable), "CPUs ").Add(Bytes(At(node, "bytes")));
    const std::string huge_2m = Text(At(node, "huge_2m")), huge_1g = Text(At(node, "huge_1g"));
    if (huge_2m != "0") parts.Add(huge_2m, "", " pages of 2 MiB");
    if (huge_1g != "0") parts.Add(huge_1g, "", " pages of 1 GiB");
    nodes.push_back(absl::StrCat("node ", TextOr(At(node, "node"), "?"), ": ", parts.Join()));
  }
  return absl::StrCat(Parts()
                          .Add(Bytes(At(memory, "bytes")))
                          .Add(TextOr(At(memory, "transparent_huge_pages"), kNotReadable), "transparent huge pages ")
                          .Add(Text(At(memory, "numa_balancing")), "NUMA balancing ")
                          .Join(),
                      nodes.empty() ? "" : "; ", absl::StrJoin(nodes, "; "));
}

std::string DescribeClock(const Json& clock) {
  const Json& invariant = At(clock, "invariant_tsc");
  return absl::StrCat(TextOr(At(clock, "source"), kNotReadable), ", TSC ",
                      !invariant.is_boolean() ? kNotReadable
                      : invariant.get<bool>() ? "invariant"
                                              : "not invariant");
}

std::string DescribeDevice(const Json& device) {
  Parts parts;
  parts.Add(absl::StrCat(TextOr(At(device, "name"), "?"), " ", Text(At(device, "type"))));
  parts.Add(Text(At(device, "driver")), "driver ").Add(Text(At(device, "firmware")), "firmware ");
  parts.Add(Text(At(device, "interface"))).Add(Text(At(device, "node")), "node ");
  for (const Json& port : Elements(At(device, "ports"))) {
    parts.Add(
        Parts()
            .Add(absl::StrCat("port ", TextOr(At(port, "port"), "?"), " ", TextOr(At(port, "state"), kNotReadable)))
            .Add(Text(At(port, "link_layer")))
            .Add(Text(At(port, "rate")))
            .Add(Text(At(port, "mtu")), "MTU ")
            .Join());
  }
  return parts.Join();
}

std::string DescribeDevices(const Json& network) {
  std::vector<std::string> devices;
  for (const Json& device : Elements(network)) devices.push_back(DescribeDevice(device));
  return devices.empty() ? "no RDMA device" : absl::StrJoin(devices, "; ");
}

std::string DescribeGpus(const Json& gpu) {
  std::vector<std::string> devices;
  for (const Json& device : Elements(At(gpu, "devices"))) devices.push_back(TextOr(At(device, "model"), "?"));
  if (devices.empty()) return "none";
  return absl::StrCat(absl::StrJoin(devices, ", "), "; driver ", TextOr(At(gpu, "driver"), kNotReadable));
}

std::string DescribeKernel(const Json& kernel) {
  std::vector<std::string> parameters;
  for (const Json& word : Elements(At(kernel, "parameters"))) parameters.push_back(Text(word));
  return absl::StrCat("Linux ", TextOr(At(kernel, "release"), kNotReadable), parameters.empty() ? "" : ", ",
                      absl::StrJoin(parameters, " "));
}

std::string DescribeLoad(const Json& load) {
  std::vector<std::string> minutes;
  for (const Json& value : Elements(At(load, "minutes"))) minutes.push_back(Text(value));
  if (minutes.empty()) return kNotReadable;
  return absl::StrCat(absl::StrJoin(minutes, " "), " (1, 5, 15 min), ", TextOr(At(load, "running"), "?"), " of ",
                      TextOr(At(load, "threads"), "?"), " threads running");
}

}  // namespace

std::vector<std::pair<std::string, std::string>> DescribeProvenance(const nlohmann::json& provenance) {
  const Json& cpu = At(provenance, "cpu");
  const std::string isolation = absl::StrCat("isolated ", TextOr(At(cpu, "isolated"), kNotReadable), ", without tick ",
                                             TextOr(At(cpu, "nohz_full"), "none"));
  const std::string machine = Parts()
                                  .Add(TextOr(At(provenance, "host"), "host name not readable"))
                                  .Add(Text(At(provenance, "product")))
                                  .Add(TextOr(At(cpu, "hypervisor"), kNotReadable), "hypervisor ")
                                  .Join();
  return {{"command", TextOr(At(provenance, "command_line"), kNotReadable)},
          {"time", TextOr(At(provenance, "time"), kNotReadable)},
          {"version", absl::StrCat("fastdecode ", TextOr(At(provenance, "version"), kNotReadable))},
          {"machine", machine},
          {"kernel", DescribeKernel(At(provenance, "kernel"))},
          {"processor", DescribeProcessor(cpu)},
          {"frequency", DescribeFrequency(cpu)},
          {"idle states", DescribeIdle(At(provenance, "idle"))},
          {"isolation", isolation},
          {"clock", DescribeClock(At(provenance, "clock"))},
          {"memory", DescribeMemory(At(provenance, "memory"))},
          {"network", DescribeDevices(At(provenance, "network"))},
          {"GPU", DescribeGpus(At(provenance, "gpu"))},
          {"load", DescribeLoad(At(provenance, "load"))}};
}

}  // namespace fastdecode
