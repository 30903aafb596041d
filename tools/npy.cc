#include "tools/npy.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/fastdecode.hpp"

namespace fastdecode {

namespace {

// Magic, version, length of the rest, and a dictionary padded so that the data starts at a multiple of 64.
std::string Header(size_t rows, size_t columns) {
  std::string dictionary = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows) + ", " +
                           std::to_string(columns) + "), }";
  dictionary.append(63 - (10 + dictionary.size()) % 64, ' ');
  dictionary += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dictionary.size() & 0xff);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary;
}

}  // namespace

NpyFile::NpyFile(const std::string& path) : path_(path), temporary_(path + ".partial-" + std::to_string(getpid())) {
  if (std::filesystem::is_directory(path))
    throw Error(FD_INVALID_ARGUMENT, path + ": cannot be written: it is a folder");
  file_ = std::fopen(temporary_.c_str(), "wb");
  if (file_ == nullptr) throw Error(FD_PERMISSION_DENIED, path + ": cannot be written: " + std::strerror(errno));
}

NpyFile::~NpyFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::remove(temporary_.c_str());
}

void NpyFile::Write(const float* values, size_t rows, size_t columns) {
  const std::string header = Header(rows, columns);
  const size_t count = rows * columns;
  if (std::fwrite(header.data(), 1, header.size(), file_) != header.size()) Fail();
  if (std::fwrite(values, sizeof(float), count, file_) != count) Fail();
  if (std::fflush(file_) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) Fail();
  std::fclose(file_);
  file_ = nullptr;
}

void NpyFile::Fail() { throw Error(FD_PERMISSION_DENIED, path_ + ": cannot be written: " + std::strerror(errno)); }

}  // namespace fastdecode
