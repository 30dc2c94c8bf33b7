"""Tests, in folders by what they need; `tests.cases` is the framework for rows of operator tests."""
