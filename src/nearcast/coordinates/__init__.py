"""Vivaldi network coordinates: the live update of one node, and a simulator over a matrix of round trips."""
