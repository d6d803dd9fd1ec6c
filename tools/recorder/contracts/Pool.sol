// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

interface IToken {
    function transfer(address to, uint256 value) external returns (bool);
    function transferFrom(address from, address to, uint256 value) external returns (bool);
}

/// A constant-product pool of two tokens with a fee of 0.3 %.
contract Pool {
    IToken public immutable token0;
    IToken public immutable token1;
    uint256 public reserve0;
    uint256 public reserve1;

    event Supply(address indexed provider, uint256 amount0, uint256 amount1);
    event Swap(
        address indexed sender,
        uint256 amount0In,
        uint256 amount1In,
        uint256 amount0Out,
        uint256 amount1Out,
        address indexed to
    );

    constructor(address token0_, address token1_) {
        token0 = IToken(token0_);
        token1 = IToken(token1_);
    }

    function supply(uint256 amount0, uint256 amount1) external {
        token0.transferFrom(msg.sender, address(this), amount0);
        token1.transferFrom(msg.sender, address(this), amount1);
        reserve0 += amount0;
        reserve1 += amount1;
        emit Supply(msg.sender, amount0, amount1);
    }

    function swap(bool zeroForOne, uint256 amountIn, uint256 minimumOut, address to) external {
        uint256 fed = amountIn * 997;
        if (zeroForOne) {
            uint256 out = (fed * reserve1) / (reserve0 * 1000 + fed);
            require(out >= minimumOut, "slippage");
            token0.transferFrom(msg.sender, address(this), amountIn);
            token1.transfer(to, out);
            reserve0 += amountIn;
            reserve1 -= out;
            emit Swap(msg.sender, amountIn, 0, 0, out, to);
        } else {
            uint256 out = (fed * reserve0) / (reserve1 * 1000 + fed);
            require(out >= minimumOut, "slippage");
            token1.transferFrom(msg.sender, address(this), amountIn);
            token0.transfer(to, out);
            reserve1 += amountIn;
            reserve0 -= out;
            emit Swap(msg.sender, 0, amountIn, out, 0, to);
        }
    }
}

/// Pays the same amount of a token to many receivers in one transaction.
contract Airdrop {
    function drop(address token, address[] calldata receivers, uint256 each) external {
        for (uint256 i = 0; i < receivers.length; i++) IToken(token).transferFrom(msg.sender, receivers[i], each);
    }
}
