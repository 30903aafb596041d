# `cmake --install BUILD --prefix PREFIX`: the program, the library in both kinds, and how CMake and pkg-config find it.
# All of it may be moved elsewhere as a whole afterwards: each file finds the others from its own place.
include(CMakePackageConfigHelpers)

get_property(FASTDECODE_ABI_VERSION GLOBAL PROPERTY FASTDECODE_ABI_VERSION)
get_property(FASTDECODE_STATIC_LIBRARIES GLOBAL PROPERTY FASTDECODE_STATIC_LIBRARIES)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/FastDecode)
set(package_build_folder ${PROJECT_BINARY_DIR}/package)

install(TARGETS fastdecode RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS fastdecode_shared fastdecode_static EXPORT FastDecodeTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/engine/api/fastdecode DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
if(TARGET fastdecode_cuda)
  # Where FindDeviceModule looks. CUDA's libraries are where the toolkit has them, which ld.so often knows nothing of.
  set_target_properties(fastdecode_cuda PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS fastdecode_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/fastdecode)
endif()

# --- CMake: find_package(FastDecode) ----------------------------------------------------------------------------------
set_target_properties(fastdecode_static PROPERTIES EXPORT_NAME fastdecode_static)
install(EXPORT FastDecodeTargets NAMESPACE FastDecode:: DESTINATION ${package_folder})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/FastDecodeConfig.cmake.in
  ${package_build_folder}/FastDecodeConfig.cmake INSTALL_DESTINATION ${package_folder}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${package_build_folder}/FastDecodeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${package_build_folder}/FastDecodeConfig.cmake ${package_build_folder}/FastDecodeConfigVersion.cmake
  DESTINATION ${package_folder})

# --- pkg-config -------------------------------------------------------------------------------------------------------
set(pkgconfig_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  message(FATAL_ERROR "CMAKE_INSTALL_LIBDIR and CMAKE_INSTALL_INCLUDEDIR must be relative: the prefix may be moved")
endif()
file(RELATIVE_PATH FASTDECODE_PREFIX_FROM_PKGCONFIG /prefix/${pkgconfig_folder} /prefix)
list(TRANSFORM FASTDECODE_STATIC_LIBRARIES PREPEND -l OUTPUT_VARIABLE private)
list(JOIN private " " FASTDECODE_PRIVATE_LIBS)
configure_file(${CMAKE_CURRENT_LIST_DIR}/fastdecode.pc.in ${package_build_folder}/fastdecode.pc @ONLY)
install(FILES ${package_build_folder}/fastdecode.pc DESTINATION ${pkgconfig_folder})

# --- For the shell ----------------------------------------------------------------------------------------------------
install(FILES ${PROJECT_SOURCE_DIR}/docs/fastdecode.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
# The program knows its options, and writes the completion itself.
add_custom_command(OUTPUT ${package_build_folder}/fastdecode.bash
  COMMAND fastdecode completion > ${package_build_folder}/fastdecode.bash
  DEPENDS fastdecode VERBATIM)
add_custom_target(fastdecode_completion ALL DEPENDS ${package_build_folder}/fastdecode.bash)
install(FILES ${package_build_folder}/fastdecode.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
  RENAME fastdecode)

# All that is installed, and nothing else.
add_custom_target(fastdecode_installable
  DEPENDS fastdecode fastdecode_shared fastdecode_static fastdecode_completion)
if(TARGET fastdecode_cuda)
  add_dependencies(fastdecode_installable fastdecode_cuda)
endif()
