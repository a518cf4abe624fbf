"""Broken environments and launches over real ones: does the verdict name the true cause, and does its remedy repair?"""
