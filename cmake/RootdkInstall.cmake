# Install rules: find_package(rootdk CONFIG) gives rootdk::rootdk; pkg-config knows rootdk; the library is versioned.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS rootdk EXPORT rootdk-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/rootdk DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET rootdk_cli)
  install(TARGETS rootdk_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY models/builtin DESTINATION ${CMAKE_INSTALL_DATADIR}/rootdk)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/rootdk)
install(EXPORT rootdk-targets NAMESPACE rootdk:: DESTINATION ${package_dir})
set(ROOTDK_HAVE_MPI OFF)
if(TARGET rootdk_mpi)
  set(ROOTDK_HAVE_MPI ON)
endif()
configure_package_config_file(cmake/rootdk-config.cmake.in ${PROJECT_BINARY_DIR}/cmake/rootdk-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/rootdk-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/rootdk-config.cmake ${PROJECT_BINARY_DIR}/cmake/rootdk-config-version.cmake
  DESTINATION ${package_dir})

# The pkg-config file finds its prefix from where it lies, so that an installed tree can be moved.
file(RELATIVE_PATH rootdk_pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/rootdk.pc.in ${PROJECT_BINARY_DIR}/cmake/rootdk.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cmake/rootdk.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
