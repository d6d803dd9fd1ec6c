// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

/// Events that a careful decoder must survive: anonymous ones, and ones that borrow the topic of ERC-20's Transfer.
contract Oddities {
    event Quiet(uint256 value) anonymous;
    event QuietPair(address indexed who, uint256 indexed what, bytes note) anonymous;
    event Message(string indexed subject, string text);

    bytes32 private constant TRANSFER = keccak256("Transfer(address,address,uint256)");

    function quiet(uint256 value, bytes calldata note) external {
        emit Quiet(value);
        emit QuietPair(msg.sender, value, note);
    }

    function message(string calldata subject, string calldata text) external {
        emit Message(subject, text);
    }

    /// The topic of Transfer with nothing, one, or both parties indexed, and with too little or too much data.
    function borrowed(uint256 shape, uint256 value) external {
        bytes32 topic = TRANSFER;
        assembly {
            mstore(0x00, caller())
            mstore(0x20, address())
            mstore(0x80, value)
            mstore(0xa0, value)
            switch mod(shape, 5)
            case 0 { log1(0x00, 0x40, topic) }
            case 1 { log2(0x80, 0x40, topic, caller()) }
            case 2 { log3(0x80, 0x00, topic, caller(), address()) }
            case 3 { log3(0x80, 0x1f, topic, caller(), address()) }
            default { log3(0x80, 0x40, topic, caller(), address()) }
        }
    }

    /// Topics that are no addresses (their high bytes are set) in the shape of a Transfer, and a log with no topic.
    function noise(uint256 value) external {
        bytes32 topic = TRANSFER;
        assembly {
            mstore(0x80, value)
            log3(0x80, 0x20, topic, not(0), not(caller()))
            log0(0x80, 0x20)
        }
    }
}

/// What users deploy: a box that takes ether and gives it back to its owner alone.
contract Vault {
    address public immutable owner;
    uint256 public immutable opens;

    event Opened(address indexed owner, uint256 amount);

    constructor(uint256 opens_) payable {
        require(opens_ > 0, "never opens");
        owner = msg.sender;
        opens = opens_;
    }

    receive() external payable {}

    function open() external {
        require(msg.sender == owner && block.timestamp >= opens, "closed");
        emit Opened(msg.sender, address(this).balance);
        (bool ok, ) = msg.sender.call{value: address(this).balance}("");
        require(ok, "refused");
    }
}

/// Code that an account delegates to (EIP-7702): several calls in one transaction, in the account's own name.
contract Batcher {
    function run(address[] calldata targets, bytes[] calldata inputs) external {
        require(msg.sender == address(this), "own account only");
        for (uint256 i = 0; i < targets.length; i++) {
            (bool ok, ) = targets[i].call(inputs[i]);
            require(ok, "a call failed");
        }
    }

    receive() external payable {}
}
